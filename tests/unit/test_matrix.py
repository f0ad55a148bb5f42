"""matrix.yaml: valid text gives typed values; mistakes are reported with their place and a similar valid word."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.durations_and_sizes import parse_duration
from envmatrix.errors import InputError
from envmatrix.matrix.parse import MatrixError, parse
from envmatrix.plan.environment import resolve_environment
from envmatrix.system.resource_paths import bundled_matrix_file

GOOD = """
version: 2
factors:
  openmp:
    gnu: {claims: {openmp: libgomp}}
    intel: {requirements: [intel-openmp==2025.3.3], preload: libiomp5.so}
  threads:
    default: {}
    one: {env: {OMP_NUM_THREADS: 1, FLAG: no, SIZE: 1e3, GONE: null}}
environments:
  baseline: {}
  fast: {openmp: intel, threads: one, description: both}
workloads:
  cnn: {model: fashion-cnn, batch_size: 64, bias: no}
  mine: {command: [python, train.py, --lr, 0.1], metric: {regex: 'x ([0-9.]+)', better: lower}}
designs:
  quick: {environments: [fast], workloads: cnn, target: 2%, budget: 5m}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(MatrixError) as caught:
        parse(text, Path("m.yaml"))
    return [str(mistake) for mistake in caught.value.mistakes]


def test_the_default_matrix_is_right():
    matrix = parse(bundled_matrix_file().read_text(), bundled_matrix_file())
    assert {"gnu", "intel", "llvm"} <= set(matrix.factors["openmp"].levels)
    assert {"book", "run-cpu", "pytorch-ci"} <= set(matrix.environments)


def test_values_of_variables_arrive_as_they_were_written():
    level = parse(GOOD, Path("m.yaml")).factors["threads"].levels["one"]
    assert dict(level.env) == {"OMP_NUM_THREADS": "1", "FLAG": "no", "SIZE": "1e3", "GONE": None}


def test_options_take_the_types_of_the_benchmark():
    workload = parse(GOOD, Path("m.yaml")).workloads["cnn"]
    assert dict(workload.options) == {"model": "fashion-cnn", "batch_size": 64, "bias": False}


def test_percentages_and_durations_are_read():
    design = parse(GOOD, Path("m.yaml")).designs["quick"]
    assert (design.target, design.budget, design.workloads) == (0.02, 300.0, ("cnn",))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5h", 5400), ("9m30s", 570), ("1h 5min", 3900), ("250ms", 0.25)]
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-5s", "9 30", "5x", "s", "5m 3", "1" * 50 + "x"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("factors:", "factor:", "m.yaml:3:1", "did you mean 'factors'?"),
        ("version: 2", "version: 3", "m.yaml:2:10", "version must be 1 or 2, not 3"),
        ("version: 2", "version: 3", "m.yaml:2:10", "the file was written for a newer envmatrix: upgrade envmatrix"),
        ("preload: libiomp5.so", "prelaod: libiomp5.so", "m.yaml:6:53", "did you mean 'preload'?"),
        ("preload: libiomp5.so", "preload: ./lib/x.so", "m.yaml:6:62", "or its absolute path, without spaces"),
        ("preload: libiomp5.so", "preload: '/my lib/x.so'", "m.yaml:6:62", "or its absolute path, without spaces"),
        ("preload: libiomp5.so", "preload: /lib/", "m.yaml:6:62", "must be a library's file name"),
        ("preload: libiomp5.so", "preload: /lib/x.so", "m.yaml:6:53", "name the library by its file name"),
        ("{openmp: intel,", "{openmp: intle,", "m.yaml:12:18", "did you mean 'intel'?"),
        ("{openmp: intel,", "{opnmp: intel,", "m.yaml:12:10", "did you mean 'openmp'?"),
        ("[fast]", "[fsat]", "m.yaml:17:26", "did you mean 'fast'?"),
        ("workloads: cnn", "workloads: cn", "m.yaml:17:44", "did you mean 'cnn'?"),
        ("batch_size: 64", "batch_siz: 64", "m.yaml:14:29", "did you mean 'batch_size'?"),
        ("batch_size: 64", "batch_size: many", "m.yaml:14:41", "must be a whole number"),
        ("batch_size: 64", "batch_size: 0", "m.yaml:14:41", "must be at least 1"),
        ("bias: no", "workers: 2", "m.yaml:14:45", "workers belong to"),
        ("target: 2%", "target: 200%", "m.yaml:17:57", "between 0% and 100%"),
        ("budget: 5m", "budget: soon", "m.yaml:17:69", "is no duration"),
        ("budget: 5m", "min_blocks: 41", "m.yaml:17:73", "it needs 41 blocks (min_blocks), but at most 40 are run"),
        (
            "budget: 5m",
            "max_blocks: 4, min_blocks: 5",
            "m.yaml:17:88",
            "it needs 5 blocks (min_blocks), but at most 4 are run",
        ),
        ("FLAG: no", "LD_PRELOAD: x.so", "m.yaml:9:37", "use `preload:`"),
        ("FLAG: no", "'A B': x", "m.yaml:9:37", "is not a valid variable name"),
        ("FLAG: no", "FLAG: '{pysical_cores}'", "m.yaml:9:43", "did you mean 'physical_cores'?"),
        ("  baseline: {}\n", "", "m.yaml:16:10", "the baseline 'baseline' is not an environment"),
        ("  baseline: {}\n", "  control: {}\n", "m.yaml:11:3", "reserved name"),
        ("  mine:", "  cnn:", "m.yaml:15:3", "duplicate key 'cnn'"),
        ("'x ([0-9.]+)'", "'x [0-9.]+'", "m.yaml:15:66", "put ( ) around the number"),
        ("'x ([0-9.]+)'", "'x ('", "m.yaml:15:66", "is not a valid regular expression"),
        ("regex: 'x ([0-9.]+)'", "json_file: out.json", "m.yaml:15:70", "must be FILE:dotted.key"),
        ("regex: 'x ([0-9.]+)', ", "", "m.yaml:15:58", "one of regex, json_file, wall and steps"),
        ("regex: 'x ([0-9.]+)', better: lower", "steps: '('", "m.yaml:15:66", "is not a valid regular expression"),
        ("regex: 'x ([0-9.]+)'", "steps: x", "m.yaml:15:58", "remove `better` and `unit`"),
        ("better: lower", "warmup: 2", "m.yaml:15:58", "`warmup` needs `steps`"),
        ("better: lower", "warmup: 0", "m.yaml:15:89", "must be at least 1"),
        ("better: lower", "better: smaller", "m.yaml:15:89", "'higher' or 'lower'"),
        ("workloads: cnn", "workloads: [cnn, cnn]", "m.yaml:17:44", "'cnn' is listed twice"),
        ("[fast]", "[fast, fast]", "m.yaml:17:25", "'fast' is listed twice"),
        ("bias: no", 'description: "a\\nRUN b"', "m.yaml:14:", "control characters"),
        ("description: both", 'description: "a\\nRUN b"', "m.yaml:12:", "control characters"),
        ("[python, train.py, --lr, 0.1]", "[]", "m.yaml:15:19", "must not be empty"),
        ("budget: 5m", "reference_values: {fast: 2x, fsat: 1x}", "m.yaml:17:90", "no environment or workload 'fsat'"),
        ("bias: no", "files: programs", "m.yaml:14:45", "`files` belongs to a workload with a `command`"),
        ("budget: 5m", "memory: 0", "m.yaml:17:69", "is no size"),
        ("budget: 5m", f"memory: {'9' * 400}", "m.yaml:17:69", "is no size"),
        ("budget: 5m", "ladder: [fast]", "m.yaml:17:61", "'ladder' is called 'cumulative' since version 2"),
        ("budget: 5m", "published: {fast: 2x}", "m.yaml:17:61", "'published' is called 'reference_values'"),
        ("workloads:\n", "defaults: {d: {batch_siz: 1}}\nworkloads:\n", "m.yaml:13:16", "'batch_size'?"),
        ("model: fashion-cnn", "defaults: cnn", "m.yaml:14:19", "no default 'cnn'"),
        (
            "openmp: libgomp",
            "opnmp: libgomp",
            "m.yaml:5:20",
            "'opnmp' is not a path of the evidence\n  -> did you mean 'openmp'?",
        ),
        ("openmp: libgomp", "openmp: '> 1'", "m.yaml:5:28", "compares numbers, but openmp is a text"),
        ("openmp: libgomp", "threads: [1, => 2]", "m.yaml:5:33", "unknown operator '=>'"),
        ("openmp: libgomp", "threads: '>= {cpu_list}'", "m.yaml:5:29", "is not a number"),
        ("openmp: libgomp", "openmp: []", "m.yaml:5:20", "the list of values is empty"),
        (
            "preload: libiomp5.so",
            "build: {numpy: {}}",
            "m.yaml:6:53",
            "build: numpy needs an exact version in the requirements",
        ),
        ("{openmp: intel,", "{openmp: [intel],", "m.yaml:12:10", "openmp: must be the name of one of its levels"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_word(old, new, place, words):
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        parse(GOOD.replace(old, new, 1), Path("m.yaml"))
    assert place in str(caught.value)
    assert words in str(caught.value)


CELLS = "  cells: {factors: {threads: [one, default]}, workloads: cnn"


@pytest.mark.parametrize(
    ("design", "place"),
    [
        (CELLS + "}", "m.yaml:18:10"),
        (CELLS + ", baseline: fast}", "m.yaml:18:73"),
        (CELLS + ", baseline: b}\n" + CELLS.replace("cells", "more").replace("one, default", "default, one")
         + ", baseline: b}", "m.yaml:19:72"),
    ],
)  # fmt: skip
def test_the_first_cell_of_a_factorial_design_has_no_name_of_something_else(design, place):
    (mistake,) = mistakes(GOOD + design)
    assert place in mistake
    assert "but that is another environment" in mistake


def test_the_first_cell_may_have_the_name_of_the_environment_that_it_is():
    for good in (CELLS.replace("one, default", "default, one") + "}", CELLS + ", baseline: first}"):
        assert len(parse(GOOD + good, Path("m.yaml")).designs) == 2


def test_reference_values_may_be_of_any_row_of_a_table():
    rows = "baseline: 1, control: 1, cnn: 1, threads-one: 2"
    text = f"  cells: {{factors: {{threads: [default, one]}}, workloads: cnn, reference_values: {{{rows}}}}}"
    assert len(parse(GOOD + text, Path("m.yaml")).designs["cells"].reference_values) == 4


def test_a_claim_may_compare_with_what_the_machine_has():
    text = GOOD.replace("openmp: libgomp", "threads: '>= {physical_cores}', malloc.options.anything: '< 5'")
    assert parse(text, Path("m.yaml")).factors["openmp"].levels["gnu"].claims["threads"] == (">= {physical_cores}",)


@pytest.mark.parametrize("path", ["/opt/my/lib.so.2", "{home}/lib/x.so"])
def test_a_library_may_be_preloaded_by_its_absolute_path_as_a_run_writes_it_too(path):
    matrix = parse(GOOD.replace("default: {}", f"default: {{preload: '{path}'}}"), Path("m.yaml"))
    assert resolve_environment(matrix, "baseline", {}).preload == (("", path),)


def test_all_mistakes_are_told_at_once():
    text = GOOD.replace("batch_size: 64", "batch_siz: 64").replace("[fast]", "[fsat]").replace("prel", "prle")
    assert len(mistakes(text)) == 2  # references between sections are only checked once each section is valid


@pytest.mark.parametrize("value", ['"a\\nb"', '"a\\0b"', '"a\\x7fb"'])
def test_control_characters_in_a_variable_are_refused(value):
    text = GOOD.replace("FLAG: no", f"FLAG: {value}")
    assert "control characters" in mistakes(text)[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "just words",
        "version: 1\nfactors: [a]",
        "a: [",
        "a: &x [*x]",
        "{" * 2000,
        "? [a]: b",
        "version: 1\n\tx",
    ],
)
def test_what_is_no_matrix_is_refused_without_a_traceback(text):
    with pytest.raises(InputError) as caught:
        parse(text, Path("m.yaml"))
    assert "m.yaml" in str(caught.value)


@given(st.text(max_size=200))
def test_no_text_whatever_ends_in_anything_but_a_matrix_or_an_input_error(text):
    try:
        parse("version: 2\n" + text, Path("m.yaml"))
    except InputError:
        return


@given(st.text(alphabet=st.characters(min_codepoint=32, exclude_characters="{}\x7f", exclude_categories=["Cs", "Cc"])))
def test_any_printable_value_survives(value):
    quoted = "'" + value.replace("'", "''") + "'"
    level = parse(GOOD.replace("FLAG: no", f"FLAG: {quoted}"), Path("m.yaml")).factors["threads"].levels["one"]
    assert level.env["FLAG"] == value


MINE = "mine: {command: [python, train.py, --lr, 0.1], metric: {regex: 'x ([0-9.]+)', better: lower}}"


@pytest.mark.parametrize(
    ("used", "added"),
    [
        ("image: name/of:one", "requirements: numpy==2.0.0"),
        ("image: name/of:one", "suite: bookworm"),
        ("modules: PyTorch/2.9.1", "requirements: numpy==2.0.0"),
        ("modules: PyTorch/2.9.1", "index: https://index.example"),
        ("conda: python=3.11", "interpreter: python3"),
        ("conda: python=3.11", "apt: libopenblas0"),
        ("interpreter: /opt/venv/bin/python", "suite: bookworm"),
    ],
)
def test_what_is_used_as_it_is_gets_nothing_added_without_a_word(used, added):
    (mistake,) = mistakes(GOOD.replace("default: {}", "default: {" + used + ", " + added + "}"))
    assert f"it cannot be combined with {added.partition(':')[0]}" in mistake
    assert mistake.startswith("m.yaml:8:")


@pytest.mark.parametrize("key", ["setup", "prepare", "cleanup"])
def test_what_is_run_around_a_program_is_words_and_never_a_line_for_a_shell(key):
    mine = "mine: {command: [a, b.py], " + key + ": WORDS}"
    parsed = parse(GOOD.replace(MINE, mine.replace("WORDS", "make 'a b' $HOME")), Path("m.yaml"))
    assert getattr(parsed.workloads["mine"], key) == ("make", "a b", "$HOME")
    with pytest.raises(
        MatrixError, match=r"m\.yaml:\d+:\d+: .*commands do not run in a shell, so '&&' would be an argument"
    ):
        parse(GOOD.replace(MINE, mine.replace("WORDS", "'make && make install'")), Path("m.yaml"))


def test_a_command_that_is_one_text_is_split_into_its_words():
    mine = parse(GOOD.replace(MINE, "mine: {command: python 'my train.py' --lr 0.1}"), Path("m.yaml"))
    assert mine.workloads["mine"].command == ("python", "my train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    ("mine", "place", "words"),
    [
        ('command: "python train.py | tee log"', "15:19", "write [bash, -c, 'python train.py | tee log']"),
        ("command: python train.py 'x", "15:19", "command: No closing quotation"),
        ("command: a, env: {LD_PRELOAD: x}", "15:28", "write `preload:` in a level"),
        ("command: a, env: {HOME: x}", "15:28", "write `home: real`"),
        ("command: a, env: {HF_TOKEN: x}", "15:28", "write `pass_env: HF_TOKEN`"),
        ("command: a, pass_env: [BENCH_PROBE]", "15:33", "BENCH_PROBE is set by envmatrix"),
        ("command: a, home: mine", "15:28", "home: "),
        ("command: a, mounts: [data]", "15:31", "must be the absolute path of a folder"),
        ("command: a, metric: {wall: yes}, metrics: {s: {wall: yes}}", "15:43", "metrics: write either"),
        ("command: a, metrics: {s: {wall: yes}, t: {steps: x}}", "15:22", "`steps` must be the first metric"),
        ("command: a, metrics: {s: {json_file: 'a:b'}, t: {json_file: 'c:d'}}", "15:22", "from one file, not from a"),
        ("model: lenet5, pass_env: A", "15:25", "`pass_env` belongs to a workload with a `command`"),
    ],
)
def test_what_is_wrong_with_a_program_is_named_with_its_place(mine, place, words):
    found = mistakes(GOOD.replace(MINE, f"mine: {{{mine}}}"))
    assert len(found) == 1
    assert found[0].startswith(f"m.yaml:{place}: ")
    assert words in found[0]

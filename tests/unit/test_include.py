"""Several included files form one matrix; each conflict is reported with its place."""

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.errors import InputError
from envmatrix.evidence.dotted_paths import SHORT_PATHS
from envmatrix.matrix import include, load
from envmatrix.matrix.include import LIBRARY_FOLDER, packaged_names
from envmatrix.matrix.parse import parse
from envmatrix.matrix.yaml_positions import parse_yaml
from envmatrix.plan.environment import resolve_environment
from envmatrix.system import bench_options
from envmatrix.system.resource_paths import bundled_matrix_file

OLD = Path(__file__).parent / "data" / "matrix-version-1.yaml"
MALLOC = "version: 2\nfactors: {malloc: {glibc: {}, tuned: {env: {A: b}}}}\n"
USES = "environments: {baseline: {}, t: {malloc: tuned}}\nworkloads: {w: {steps: 5}}\ndesigns:\n"
ROOT = "version: 2\ninclude: lib.yaml\n" + USES + "  d: {environments: t, workloads: w}\n"


def write(folder, **files):
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "root.yaml"


def refused(path):
    with pytest.raises(InputError) as caught:
        load(path)
    return str(caught.value)


def content(matrix):
    """Return a matrix's content without its location."""
    return matrix.model_dump(exclude={"digest", "text", "path"})


def full(claims):
    return {(SHORT_PATHS.get(path, path), *values) for path, values in claims.items()}


def test_the_matrix_offers_all_that_it_offered_in_one_file_of_version_1():
    old, new = load(OLD), load(bundled_matrix_file())
    assert set(old.factors) <= set(new.factors), "others may be new"
    for name, factor in old.factors.items():
        kept = [level for level in new.factors[name].levels if level in factor.levels]
        assert kept == list(factor.levels), "others may be new"
        for level, body in factor.levels.items():
            now = new.factors[name].levels[level]
            # Keys that were added to shipped levels after version 1.
            later = {
                "architectures",
                "claims",
                "turns",
                *(["description"] if name == "fp32-maths" else []),
                *(["requires"] if (name, level) == ("hugepages", "glibc") else []),
            }
            assert body.model_dump(exclude=later) == now.model_dump(exclude=later)
            assert full(body.claims) <= full(now.claims), "what was claimed still is, and more"
    assert dict(old.environments) == {name: new.environments[name] for name in old.environments}
    for name in old.environments:
        one, other = (resolve_environment(matrix, name, {}) for matrix in (old, new))
        shared = {factor: other.levels[factor] for factor in one.levels}
        libraries = tuple(replace(library, architectures=()) for library in other.libraries)
        image = replace(other.image, architectures=())
        now = replace(other, claims=(), turns=True, levels=shared, libraries=libraries, image=image, architectures={})
        assert replace(one, claims=(), turns=True) == now
    # Settings that were added to shipped designs are ignored: steady-state runs, schedule, budgets, and the
    # environments of `onednn`.
    # Former designs with workloads only now compare with one of them.
    same = {"steady": False, "schedule": "sequential", "turn_apart": 1, "claims_first": False}
    assert set(old.designs["onednn"].environments) <= set(new.designs["onednn"].environments)
    cuda = (new.designs[name].workloads for name in ("cuda", "cuda-graphs"))
    assert old.designs["cuda"].workloads == tuple(itertools.chain(*cuda)), "two designs now"
    later = {"quick": {"budget": 0, "description": ""}, "onednn": {"environments": ()}, "cuda": {"workloads": ()}}
    plain = [
        {
            name: design.model_copy(update={**same, **later.get(name, {})})
            for name, design in one.designs.items()
            if name in old.designs and design.application == old.designs[name].application
        }
        for one in (old, new)
    ]
    assert set(old.designs) - set(plain[1]) == {"parallel", "lightning", "horovod", "openxla"}
    assert {name: plain[0][name] for name in plain[1]} == plain[1]
    assert set(old.workloads) <= set(new.workloads)
    standard = {name: option.default for name, option in bench_options.options().items()}
    for name, workload in old.workloads.items():
        now = new.workloads[name]
        checked = {"verify_steps": 5} if name == "single" else {}  # like the workload that it is compared with
        assert {**standard, **workload.options, **checked} == {**standard, **now.options}
        assert (workload.description, workload.command, workload.metric) == (now.description, now.command, now.metric)


@pytest.mark.parametrize(
    ("design", "ending"),
    [("default", "or after 6m and 6 blocks"), ("quick", "or after 4m and 6 blocks"), ("onednn", "or after 5m")],
)
def test_what_a_newcomer_runs_first_waits_for_its_verdict_and_the_plan_says_so(design, ending, capsys):
    """On a slow machine, six minutes ended one block before a verdict."""
    assert main(["plan", design, "--matrix", str(bundled_matrix_file()), "--blocks", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(ending)


def test_a_newcomer_can_read_the_matrix_and_every_library():
    assert len(bundled_matrix_file().read_text().splitlines()) < 70
    for file in (bundled_matrix_file(), *LIBRARY_FOLDER.glob("*.yaml")):
        assert max(map(len, file.read_text().splitlines())) <= 120


@pytest.mark.parametrize("name", packaged_names())
def test_a_packaged_library_stands_alone(name):
    text = f"version: 2\ninclude: envmatrix:{name}\nenvironments: {{baseline: {{}}}}\n"
    matrix = parse(text, Path("m.yaml"))
    assert matrix.factors or matrix.designs


def test_a_program_of_ones_own_gets_the_factors(tmp_path):
    root = write(
        tmp_path,
        root="version: 2\ninclude: [envmatrix:malloc, envmatrix:threads]\n"
        "factors: {torch: {mine: {interpreter: python3}}, malloc: {ours: {env: {A: b}}}}\n"
        "environments: {baseline: {}, both: {malloc: ours, threads: one}}\n"
        "workloads: {w: {command: [python, x.py]}}\ndesigns: {d: {environments: [both, tcmalloc], workloads: w}}\n",
    )
    matrix = load(root)
    assert next(iter(matrix.factors["malloc"].levels)) == "glibc"
    assert list(matrix.factors["malloc"].levels)[-1] == "ours"
    assert resolve_environment(matrix, "both", {}).variables == {"A": "b", "OMP_NUM_THREADS": "1"}


def test_files_that_include_nothing_have_the_digest_and_the_text_of_the_file(tmp_path):
    root = write(tmp_path, root=MALLOC)
    assert load(root).text == MALLOC
    assert load(root).digest == parse(MALLOC, Path("elsewhere.yaml")).digest
    assert load(root).digest == "sha256:" + hashlib.sha256(MALLOC.encode()).hexdigest()


def test_the_digest_is_over_all_files(tmp_path):
    root = write(tmp_path, root=ROOT, lib=MALLOC)
    before = load(root).digest
    write(tmp_path, lib=MALLOC.replace("A: b", "A: c"))
    assert load(root).digest != before


@pytest.mark.parametrize("path", [bundled_matrix_file(), OLD])
def test_a_matrix_as_one_text_says_the_same(path):
    whole = load(path)
    again = parse(whole.text, path)
    assert content(again) == content(whole)
    assert again.text == whole.text


def test_odd_texts_survive_being_put_together(tmp_path):
    values = [
        "no",
        "1e3",
        "007",
        "null",
        "~",
        "",
        " x ",
        "a: b",
        "- a",
        "#c",
        "'q'",
        '"',
        "=",
        "<<",
        "{0:2}",
        "é",
        "1_0",
    ]
    env = json.dumps({f"V{number}": value for number, value in enumerate(values)})
    lib = f"version: 2\nfactors: {{f: {{a: {{}}, b: {{env: {env}}}}}}}\n"
    matrix = load(write(tmp_path, root="version: 2\ninclude: lib.yaml\n", lib=lib))
    assert list(parse(matrix.text, Path("m.yaml")).factors["f"].levels["b"].env.values()) == values


@pytest.mark.parametrize("name", include.packaged_names())
def test_a_packaged_file_means_the_same_to_libyaml(name):
    file = include.LIBRARY_FOLDER / f"{name}.yaml"
    slow, fast = (parse_yaml(file.read_text(), file, packaged=packaged) for packaged in (False, True))
    assert (slow.data, slow.positions) == (fast.data, fast.positions)


def test_a_file_is_read_once_however_often_it_is_named(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(include, "parse_yaml", lambda text, file, **_: read.append(file.name) or parse_yaml(text, file))
    root = write(tmp_path, root="version: 2\ninclude: [a.yaml, b.yaml, ./a.yaml]\n",
                 a="version: 2\ninclude: lib.yaml\n", b="version: 2\ninclude: [lib.yaml]\n", lib=MALLOC)  # fmt: skip
    assert list(load(root).factors) == ["malloc"]
    assert sorted(read) == ["a.yaml", "b.yaml", "lib.yaml"]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path):
    own = "version: 2\ninclude: ../lib.yaml\n"
    own += "workloads: {mine: {command: [python, x.py]}, other: {command: [a], files: p}}\n"
    root = write(tmp_path, root="version: 2\ninclude: sub/own.yaml\n", sub__own=own, lib=MALLOC)
    matrix = load(root)
    assert "malloc" in matrix.factors
    assert (matrix.workloads["mine"].files, matrix.workloads["other"].files) == ("sub", "sub/p")
    assert content(parse(matrix.text, root)) == content(matrix)


def test_a_folder_of_a_default_is_relative_to_the_file_that_holds_the_default(tmp_path):
    own = "version: 2\ndefaults: {own: {command: [a], files: p}}\n"
    root = write(tmp_path, root="version: 2\ninclude: sub/own.yaml\nworkloads: {w: {defaults: own}}\n", sub__own=own)
    assert load(root).workloads["w"].files == "sub/p"


def test_absolute_paths_may_be_included(tmp_path):
    write(tmp_path, lib=MALLOC)
    assert "malloc" in parse(f"version: 2\ninclude: {tmp_path}/lib.yaml\n", Path("m.yaml")).factors


def test_version_1_is_read_with_its_own_words_and_may_be_included(tmp_path):
    old = "version: 1\n" + MALLOC.partition("\n")[2] + USES
    old += "  d: {ladder: t, published: {t: 2x}, workloads: w}\n"
    for matrix in (parse(old, Path("m.yaml")), load(write(tmp_path, root="version: 2\ninclude: old.yaml\n", old=old))):
        assert matrix.designs["d"].cumulative == ("t",)
        assert matrix.designs["d"].reference_values == {"t": "2x"}
    assert "cumulative" in matrix.text


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [("t: {malloc: tuned}", "t: {malloc: tunde}", "root.yaml:3:42", "did you mean 'tuned'?"),
     ("lib.yaml", "lbi.yaml", "root.yaml:2:10", "did you mean 'lib.yaml'?"),
     ("lib.yaml", "envmatrix:maloc", "root.yaml:2:10", "did you mean 'envmatrix:malloc'?"),
     ("lib.yaml", "malloc.yaml", "root.yaml:2:10", "cannot include"),
     ("lib.yaml", "[lib.yaml, .]", "root.yaml:2:21", "it is not a file"),
     ("lib.yaml", "/dev/zero", "root.yaml:2:10", "it is not a file"),
     ("lib.yaml", '"a\\0b"', "root.yaml:2:10", "must be a list of files"),
     ("lib.yaml", "{a: b}", "root.yaml:2:10", "must be a list of files"),
     ("lib.yaml", "root.yaml", "root.yaml:2:10", "circular include: root.yaml -> root.yaml"),
     ("version: 2", "version: 1", "root.yaml:2:1", "'include' needs version 2"),
     ("environments: {", "factors: {malloc: {tuned: {}}}\nenvironments: {", "root.yaml:3:20",
      "level of malloc 'tuned' is already defined in"),
     ("  d:", "  ladder: 1\n  d:", "root.yaml:6:11", "must contain `name: ...` lines")],
)  # fmt: skip
def test_what_cannot_be_included_is_named_with_its_place(tmp_path, old, new, place, words):
    assert old in ROOT
    said = refused(write(tmp_path, root=ROOT.replace(old, new, 1), lib=MALLOC))
    assert said.startswith(f"{tmp_path}/{place}")
    assert words in said


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [("version: 2\n", "", "lib.yaml", "`version` is missing"),
     ("factors", "factor", "lib.yaml:2:1", "did you mean 'factors'?"),
     ("env: {A: b}", "enw: {A: b}", "lib.yaml:2:39", "did you mean 'env'?"),
     ("{glibc", "[glibc", "lib.yaml:2:", "not valid YAML"), (MALLOC, "- a", "lib.yaml:1:1", "must contain `name"),
     ("\n", "\nenvironments: {t: {}}\n", "root.yaml:3:30", "environment 't' is already defined in"),
     ("\n", "\nenvironments: [t]\n", "lib.yaml:2:15", "must contain `name: ...` lines"),
     ("\n", "\ndesigns: {e: {workloads: x}}\n", "lib.yaml:2:26", "no workload 'x'"),
     ("\n", "\ninclude: root.yaml\n", "lib.yaml:2:10", "circular include: root.yaml -> lib.yaml -> root.yaml")],
)  # fmt: skip
def test_a_mistake_in_an_included_file_names_that_file(tmp_path, old, new, place, words):
    said = refused(write(tmp_path, root=ROOT, lib=MALLOC.replace(old, new, 1)))
    assert any(line.startswith(f"{tmp_path}/{place}") and words in said for line in said.splitlines()), said


def test_a_name_that_stands_twice_tells_both_places(tmp_path):
    own = ROOT.replace("t: {malloc: tuned}", "t: {malloc: tuned}, tcmalloc: {}").replace("lib.", "lib2.")
    said = refused(write(tmp_path, root=own, lib2=MALLOC + "environments: {tcmalloc: {}}"))
    assert f"{tmp_path}/root.yaml:3:50: environment 'tcmalloc' is already defined in {tmp_path}/lib2.yaml:3:16" in said
    assert "rename one of them" in said


def refused_text(text):
    with pytest.raises(InputError) as caught:
        parse(text, Path("m.yaml"))
    return str(caught.value)


def test_old_and_new_words_of_a_design_together_are_told():
    text = "version: 1\ndesigns: {d: {ladder: [a], cumulative: [b], workloads: w}}\n"
    assert "m.yaml:2:15: 'ladder' is called 'cumulative' since version 2" in refused_text(text)


def test_a_matrix_of_a_newer_version_asks_for_an_upgrade():
    assert (
        "m.yaml:1:10: version must be 1 or 2, not 3\n  -> the file was written for a newer envmatrix"
        in refused_text("version: 3\n")
    )


def test_chains_and_crowds_of_files_are_bounded(tmp_path):
    chain = {f"f{number}": f"version: 2\ninclude: f{number + 1}.yaml\n" for number in range(20)}
    said = refused(write(tmp_path, root="version: 2\ninclude: f0.yaml\n", **chain))
    assert f"{tmp_path}/f9.yaml:2:10" in said
    assert "more than 10 levels" in said
    many = {f"g{number}": "version: 2\n" for number in range(101)}
    names = ", ".join(f"{name}.yaml" for name in many)
    assert "more than 100 files in all" in refused(write(tmp_path, root=f"version: 2\ninclude: [{names}]\n", **many))


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    root = write(tmp_path, root=ROOT)
    with (tmp_path / "lib.yaml").open("wb") as file:
        file.truncate(2**40)
    assert "the limit is 4194304 bytes" in refused(root)


DEFAULTS = (
    "version: 2\ndefaults: {short: {steps: 3, description: d, batch_size: 0}}\nworkloads: {w: {defaults: short%s}}\n"
)


def test_defaults_are_laid_under_a_workload():
    workload = parse(DEFAULTS.replace("batch_size: 0", "bias: no") % ", steps: 4", Path("m.yaml")).workloads["w"]
    assert (workload.options, workload.description) == ({"steps": 4, "bias": False}, "d")


def test_a_mistake_in_a_default_is_told_once_where_it_stands():
    assert refused_text(DEFAULTS % "").count("m.yaml:2:") == 1
    assert "m.yaml:2:58: batch_size: must be at least 1" in refused_text(DEFAULTS % "")


def test_a_default_takes_nothing_from_another_one():
    text = "version: 2\ndefaults: {a: {steps: 4}, b: {defaults: a}}\nworkloads: {w: {defaults: b}}\n"
    assert "m.yaml:2:31: a default cannot use another default\n  -> write its keys here" in refused_text(text)


def test_mistakes_stand_from_left_to_right():
    text = "version: 2\ndesigns: {d: {workloads: w, budget: 1d, target: 200%}}\nworkloads: {w: {}}\n"
    assert refused_text(text).index("budget") < refused_text(text).index("target")


def test_a_default_may_be_of_programs_and_of_another_file(tmp_path):
    lib = "version: 2\ndefaults: {own: {command: [python, x.py], metric: {regex: 'x ([0-9]+)'}}}\n"
    root = write(tmp_path, root="version: 2\ninclude: lib.yaml\nworkloads: {a: {defaults: own, files: p}}\n", lib=lib)
    workload = load(root).workloads["a"]
    assert (workload.command, workload.metric.regex, workload.files) == (("python", "x.py"), "x ([0-9]+)", "p")


def test_check_says_as_json_in_which_file_a_mistake_is(tmp_path, capsys):
    root = write(tmp_path, root=ROOT, lib=MALLOC.replace("env:", "enw:"))
    assert main(["check", "--matrix", str(root), "--json"]) == 2
    (mistake,) = json.loads(capsys.readouterr().out)["mistakes"]
    assert (mistake["file"], mistake["line"], mistake["column"]) == (str(tmp_path / "lib.yaml"), 2, 39)


def test_a_run_and_its_matrix_stay_together_without_the_files(tmp_path):
    root = write(tmp_path, root=ROOT, lib=MALLOC)
    text = load(root).text
    assert "include" not in text
    assert content(parse(text, root)) == content(load(root))


PACKAGED = "version: 2\ninclude: [envmatrix:training, envmatrix:designs]\nworkloads: {w: {steps: 5}}\n"
CLASHING = """version: 2
include: envmatrix:threads
factors: {mine: {a: {env: {OMP_NUM_THREADS: "3"}}}}
environments: {baseline: {}}
workloads: {w: {steps: 5}}
designs: {d: {environments: [], workloads: w}}
"""


def test_what_a_packaged_file_lacks_is_told_once_at_the_line_that_includes_it(tmp_path, capsys):
    file = write(tmp_path, root=PACKAGED)
    assert main(["check", "--matrix", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{file}:2:11: envmatrix:training: the baseline 'baseline' is not an environment\n" in told
    assert f"{file}:2:31: envmatrix:designs: the baseline 'baseline' is not an environment\n" in told
    assert told.count("is not an environment") == 2
    assert str(LIBRARY_FOLDER) not in told


def test_what_a_packaged_file_holds_too_is_told_at_the_line_that_includes_it(tmp_path):
    own = "version: 2\nfactors: {malloc: {glibc: {}}}\n"
    told = refused(write(tmp_path, root="version: 2\ninclude: [./own.yaml, envmatrix:malloc]\n", own=own))
    assert (
        f"root.yaml:2:23: envmatrix:malloc: level of malloc 'glibc' is already defined in {tmp_path}/own.yaml:2:20"
        in told
    )


def test_levels_that_clash_in_a_packaged_environment_are_told_at_the_level_of_the_user(tmp_path, capsys):
    file = write(tmp_path, root=CLASHING)
    assert main(["check", "--matrix", str(file)]) == 2
    assert f"{file}:3:28: mine=a of 'one-thread' sets OMP_NUM_THREADS to '3'" in capsys.readouterr().err

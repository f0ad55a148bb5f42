"""Checks of levels: they pass only if the evidence shows it, and are refused if no evidence could."""

import pytest
from pydantic import TypeAdapter

from envmatrix.evidence import checks
from envmatrix.evidence.dotted_paths import SHORT_PATHS, known_paths, lookup
from envmatrix.evidence.trial_record import read_evidence

EVIDENCE = {
    "openmp": {"library": "libgomp", "blocktime": 0, "settings": {"a.b": "dotted"}},
    "malloc": {"library": None, "options": {"dirty_decay_ms": -1, "tcache": True}},
    "torch": {"threads": 2, "mkl": False},
    "cpu": {"affinity_after": [0, 1]},
    "cuda": {"devices": [{"name": "NVIDIA H200"}, {"name": "other"}]},
}


def contradictions(promised, evidence=EVIDENCE):
    return checks.contradictions(checks.parse_claims(promised), read_evidence(evidence))


def holds(path, *values):
    return contradictions({path: values}) == []


def refused(path, *values):
    with pytest.raises(checks.ClaimError) as caught:
        checks.check(checks.parse_claim(path, values))
    return caught.value


def test_what_is_shown_holds():
    assert holds("openmp", "libgomp")
    assert holds("threads", "2")
    assert holds("openmp.blocktime", "0")
    assert holds("torch.mkl", "false")


def test_what_is_otherwise_is_told_with_both_values():
    assert contradictions({"openmp": ("libiomp5",)}) == ["claims openmp is libiomp5, but it was libgomp"]
    assert contradictions({"threads": ("> 2",)}) == ["claims threads is > 2, but it was 2"]


def test_what_cannot_be_read_back_is_no_proof():
    assert "could not be read at run time" in contradictions({"malloc": ("libc",)})[0]
    assert "could not be read at run time" in contradictions({"torch.threads.deep": ("2",)})[0]
    assert "could not be read at run time" in contradictions({"xla.compile_count": ("!= 0",)})[0]


def test_one_of_several_values_is_enough():
    assert holds("openmp", "libomp", "libgomp")
    assert holds("threads", "> 100", "2")


def test_paths_may_go_through_keys_with_dots_and_lists_are_joined():
    assert lookup(read_evidence(EVIDENCE), "openmp.settings.a.b") == "dotted"
    assert holds("cpu.affinity_after", "0,1")
    assert holds("cuda.devices.1.name", "other")
    assert not holds("cuda.devices.2.name", "*")


def test_a_pattern_stands_for_any_text_in_between():
    evidence = {"openmp": {"affinity": "noverbose,granularity=fine,compact,1,0"}}
    assert contradictions({"openmp.affinity": ("*,compact,1,0",)}, evidence) == []
    assert contradictions({"openmp.affinity": ("*,scatter,1,0",)}, evidence) != []


def test_brackets_and_question_marks_stand_for_themselves():
    evidence = {"openmp": {"affinity": "explicit,proclist=[0,1]", "version": "a?"}}
    assert contradictions({"openmp.affinity": ("*,proclist=[0,1]",), "openmp.version": ("a?",)}, evidence) == []
    assert contradictions({"openmp.affinity": ("*,proclist=[01]",)}, evidence)
    assert contradictions({"openmp.version": ("??",)}, evidence)


def test_an_equals_sign_means_that_very_text():
    evidence = {"openmp": {"affinity": "a*", "version": "> 0"}}
    assert contradictions({"openmp.affinity": ("= a*",), "openmp.version": ("= > 0",)}, evidence) == []
    assert contradictions({"openmp.affinity": ("= a",)}, evidence)
    assert contradictions({"openmp.affinity": ("= *",)}, evidence)


@pytest.mark.parametrize(
    ("value", "true"),
    [("> 1", True), ("> 2", False), (">= 2", True), (">=2.5", False), ("< 3", True), ("< 2", False), ("<= 2", True),
     ("!= 0", True), ("!= 2", False), (">1", True)],
)  # fmt: skip
def test_numbers_are_compared(value, true):
    assert holds("threads", value) is true


def test_blanks_around_what_is_compared_do_not_count():
    (claim,) = checks.parse_claims({"openmp": ["=  libgomp "]})
    assert str(claim) == "openmp is = libgomp"
    assert not claim.contradiction(read_evidence({"openmp": {"library": "libgomp"}}))


def test_the_longest_key_that_fits_is_meant():
    evidence = read_evidence({"malloc": {"options": {"arena": 1, "arena.0": 2}}})
    assert (lookup(evidence, "malloc.options.arena"), lookup(evidence, "malloc.options.arena.0")) == (1, 2)


def test_numbers_of_an_open_part_are_compared_where_they_are_numbers():
    assert holds("malloc.options.dirty_decay_ms", "< 0")
    assert not holds("malloc.options.tcache", "> 0")
    evidence = {"openmp": {"spin_count": "INFINITY"}}
    assert contradictions({"openmp.spin_count": ("> 0",)}, evidence) == [
        "claims openmp.spin_count is > 0, but it was INFINITY"
    ]
    assert contradictions({"openmp.spin_count": ("> 0",)}, {"openmp": {"spin_count": "300000"}}) == []


def test_a_number_is_the_same_however_it_is_written():
    evidence = {"sandbox": {"cgroup": {"cpu_limit": 2.0}}}
    assert contradictions({"sandbox.cgroup.cpu_limit": ("2",)}, evidence) == []


@pytest.mark.parametrize(
    ("path", "remedy"),
    [("opnmp", "did you mean 'openmp'?"), ("openmp.libary", "did you mean 'openmp.library'?"),
     ("affinity_after", "did you mean 'cpu.affinity_after'?"), ("quux", "list all paths: `envmatrix evidence ENV`"),
     ("torch.threads.deep", "did you mean 'torch.threads'?"),
     ("sandbox.cgroup.cpu_limits", "sandbox.cgroup.cpu_limit'"),
     ("cuda.devices.name", "did you mean 'cuda.devices.0.name'?"), ("", "list all paths")],
)  # fmt: skip
def test_a_path_that_no_evidence_has_is_refused_with_the_nearest(path, remedy):
    error = refused(path, "x")
    assert str(error) == f"{path!r} is not a path of the evidence"
    assert remedy in error.remedy
    assert error.index is None


@pytest.mark.parametrize("path", ["cuda", "sandbox.cgroup", "cuda.devices"])
def test_a_claim_on_a_whole_part_names_what_is_in_it(path):
    error = refused(path, "x")
    assert "is a part of the evidence, not a single value" in str(error)
    assert f"{path}." in error.remedy


def test_every_path_with_a_name_may_be_claimed_and_every_key_of_an_open_part():
    for path in (*known_paths(), *SHORT_PATHS, "variables.MY_OWN", "malloc.options.x", "openmp.settings.OMP.X",
                 "collectives.hidden_settings./etc/nccl.conf.NCCL_ALGO", "xla.fallbacks.aten::nonzero"):  # fmt: skip
        checks.check(checks.parse_claim(path, ["*"]))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [("openmp", "> 2", "compares numbers, but openmp is a text"),
     ("torch.mkl", "!= 0", "torch.mkl is true or false"), ("libraries", ">= 1", "libraries is a list"),
     ("threads", "=> 2", "unknown operator '=>'"), ("threads", "== 2", "unknown operator '=='"),
     ("openmp", "~ lib", "'~'"),
     ("threads", "> two", "'two' is not a number"), ("threads", "<", "'' is not a number"),
     ("threads", "> nan", "not a number")],
)  # fmt: skip
def test_a_comparison_that_cannot_be_made_is_refused(path, value, words):
    error = refused(path, "2", value)
    assert words in str(error)
    assert error.index == 1
    assert error.remedy


def test_a_claim_that_allows_nothing_is_refused():
    assert "the list of values is empty" in str(refused("openmp"))


def test_claims_stand_in_run_json_as_they_are_written():
    kept = TypeAdapter(checks.Claims)
    body = {"openmp": ["libgomp", "= a*"], "threads": [">= 2"]}
    assert kept.dump_python(kept.validate_python(body)) == body
    assert TypeAdapter(checks.Claims).json_schema()["type"] == "object"


def test_a_claim_of_an_older_run_that_looks_like_an_operator_is_a_text():
    assert contradictions({"openmp.version": ("== 5",)}, {"openmp": {"version": "== 5"}}) == []
    assert contradictions({"openmp.version": ("== 5",)}, {"openmp": {"version": "5"}})

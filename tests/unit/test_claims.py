"""A claim is believed only when the evidence shows it."""

from envmatrix.record.claims import contradictions, lookup

EVIDENCE = {
    "openmp": {"library": "libgomp", "blocktime": 0, "settings": {"a.b": "dotted"}},
    "malloc": {"library": None},
    "torch": {"threads": 2, "cuda": False},
    "cpu": {"affinity_after": [0, 1]},
}


def test_what_is_shown_holds():
    claims = {"openmp": ("libgomp",), "threads": ("2",), "openmp.blocktime": ("0",), "torch.cuda": ("false",)}
    assert contradictions(claims, EVIDENCE) == []


def test_what_is_otherwise_is_told_with_both_values():
    assert contradictions({"openmp": ("libiomp5",)}, EVIDENCE) == ["claims openmp is libiomp5, but it was libgomp"]


def test_what_cannot_be_read_back_is_no_proof():
    assert "could not be read back" in contradictions({"malloc": ("libc",)}, EVIDENCE)[0]
    assert "could not be read back" in contradictions({"torch.threads.deep": ("2",)}, EVIDENCE)[0]


def test_one_of_several_values_is_enough():
    assert contradictions({"openmp": ("libomp", "libgomp")}, EVIDENCE) == []


def test_paths_may_go_through_keys_with_dots_and_lists_are_joined():
    assert lookup(EVIDENCE, "openmp.settings.a.b") == "dotted"
    assert contradictions({"cpu.affinity_after": ("0,1",)}, EVIDENCE) == []


def test_a_pattern_stands_for_any_text_in_between():
    evidence = {"openmp": {"affinity": "noverbose,granularity=fine,compact,1,0"}}
    assert contradictions({"openmp.affinity": ("*,compact,1,0",)}, evidence) == []
    assert contradictions({"openmp.affinity": ("*,scatter,1,0",)}, evidence) != []


def test_brackets_and_question_marks_stand_for_themselves():
    evidence = {"openmp": {"affinity": "explicit,proclist=[0,1]", "places": "a?"}}
    assert contradictions({"openmp.affinity": ("*,proclist=[0,1]",), "openmp.places": ("a?",)}, evidence) == []
    assert contradictions({"openmp.affinity": ("*,proclist=[01]",)}, evidence)
    assert contradictions({"openmp.places": ("??",)}, evidence)

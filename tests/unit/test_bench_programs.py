"""Which programs of a trial are checked against its environment: those that did the work, one or several."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.evidence import command_programs
from bench.evidence.command_programs import _merge_alike, _working_programs
from bench.evidence.process_tree_watch import Program, Reaped

BIG = 0.55


def program(pid, cpu_s, name="python3", libraries=None):
    found = Program(pid, name, number=pid, cpu_s=cpu_s)
    found.path, found.threads, found.variables, found.libraries = "/python3", 1, {}, libraries
    return found


def test_many_small_programs_that_are_alike_are_one_that_works():
    many = [program(pid, 0.03, libraries={"/libm.so.6"}) for pid in range(2, 17)]
    found, left_s = _working_programs(_merge_alike([program(1, BIG, libraries={"/libtcmalloc.so.4"}), *many], 0.1), 0.1)
    assert [(one.libraries, one.cpu_s) for one in found] == [
        ({"/libtcmalloc.so.4"}, BIG), ({"/libm.so.6"}, pytest.approx(0.45)),
    ]  # fmt: skip
    assert left_s == 0.0


@pytest.mark.parametrize(("torch", "names"), [({"threads": 1}, ["python3"]), (None, ["cc1plus", "python3"])])
def test_a_compiler_that_pytorch_starts_is_not_checked_and_no_unseen_work(tmp_path, torch, names):
    """Its allocator cannot be read: it made every environment of a program with torch.compile unproven."""
    probe = {
        "probe_cpu_s": [0.0],
        "cpu_s": 2.0,
        "probe_ns": 0,
        "evidence": {"torch": torch, "malloc": None, "openmp": None, "libraries": None},
    }
    (tmp_path / "1.json").write_text(json.dumps(probe))
    seen = [program(1, 2.0), Program(2, "cc1plus", number=2, cpu_s=3.0)]
    watched = SimpleNamespace(programs=lambda: seen, reaped=[], processes=2, pid=1)
    found, _ = command_programs.evidence_and_probing_ns(str(tmp_path), watched, 5.0)
    assert [one["name"] for one in found["programs"]] == names
    assert found["unseen_share"] == 0.0


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("cc1plus", True),
        ("x86_64-linux-gnu-ld.bfd", True),
        ("g++-12", True),
        ("ptxas", True),
        ("train", False),
        ("asv", False),
    ],
)
def test_compilers_are_known_by_their_names(name, compiles):
    assert bool(command_programs._COMPILER.match(name)) is compiles


def test_a_program_that_began_late_is_looked_at_again_at_once_as_its_loader_may_have_been_at_work():
    late = program(os.getpid(), 0.0)
    late.look(late.pid, 100.0)
    late.libraries = set()  # nothing was mapped yet
    late.look(late.pid, 100.2)
    assert late.libraries
    late.libraries = set()
    late.look(late.pid, 100.3)
    assert not late.libraries, "from then on at ages that double"


def reaped(cpu_s, *ended):
    return Reaped(1, 0.0, 1.0, cpu_s, ended)


@pytest.mark.parametrize(
    ("told", "taken"),
    [(2.9, 2.9), (2.0, 2.2), (9.0, 2.2)],
    ids=["its end is its own", "it knows itself what it took", "what is much more may be of others"],
)
def test_what_a_process_took_after_the_last_look_is_its_own(told, taken):
    short = program(2, 0.0)
    short.add_cpu_time(2, 0.3)
    probe = {"cpu_s": 2.0, "probe_cpu_s": [0.2, 0.0], "children_s": 0.0, "parent": 1, "ended_s": 0.5}
    command_programs._settle_cpu_times(
        SimpleNamespace(programs=lambda: [short], reaped=[reaped(told, (2, short, 0.3))]), {2: probe}
    )
    assert short.cpu_s == pytest.approx(taken)


def test_what_a_parent_was_told_of_a_child_that_only_spoke_itself_is_not_anothers():
    long = program(2, 0.0)
    long.add_cpu_time(2, 1.0)
    other = {"cpu_s": 0.5, "probe_cpu_s": [0.0, 0.0], "children_s": 0.0, "parent": 1, "ended_s": 0.5}
    command_programs._settle_cpu_times(
        SimpleNamespace(programs=lambda: [long], reaped=[reaped(1.6, (2, long, 1.0))]), {3: other}
    )
    assert long.cpu_s == pytest.approx(1.1)


def test_small_programs_that_differ_are_taken_until_less_than_a_tenth_is_left():
    many = [program(pid, 0.045, libraries={f"/{pid}.so"}) for pid in range(2, 12)]
    found, left_s = _working_programs(_merge_alike([program(1, BIG), *many], 0.1), 0.1)
    assert (len(found), left_s) == (9, 0.0)


def test_what_is_left_of_too_many_is_unseen():
    many = [program(pid, 0.009, libraries={f"/{pid}.so"}) for pid in range(2, 52)]
    found, left_s = _working_programs(_merge_alike([program(1, BIG), *many], 0.1), 0.1)
    assert (len(found), left_s) == (20, pytest.approx(0.45 - 19 * 0.009))


def test_what_nccl_took_in_each_process_is_in_its_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(command_programs, "_GPUS", str(tmp_path))
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    asked = command_programs.nccl_logging_variables(str(tmp_path))
    assert asked["NCCL_DEBUG"] == "INFO"
    for pid in (7, 8):
        (tmp_path / f"{pid}.json").write_text('{"evidence": {"malloc": null}, "probe_ns": 1}')
    said = "host:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Ring.\nhost:7:7 [0] NCCL INFO 4 coll channels, x\n"
    Path(asked["NCCL_DEBUG_FILE"].replace("%p", "7")).write_text(said)
    found = command_programs._probes(str(tmp_path))
    assert found[7]["evidence"]["parallel"] == {"nccl": {"NCCL_ALGO": "Ring", "channels": "4"}}
    assert "parallel" not in found[8]["evidence"]


def test_nccl_is_asked_nothing_where_the_user_asks_or_no_gpu_is(tmp_path, monkeypatch):
    monkeypatch.setattr(command_programs, "_GPUS", str(tmp_path))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert command_programs.nccl_logging_variables(str(tmp_path)) == {}
    monkeypatch.delenv("NCCL_DEBUG")
    monkeypatch.setattr(command_programs, "_GPUS", str(tmp_path / "nvidia[0-9]*"))
    assert command_programs.nccl_logging_variables(str(tmp_path)) == {}

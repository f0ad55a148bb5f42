"""Interpretation of Slurm's answers, and decisions about a job that ended too early."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from envmatrix.api.matrix_and_run_lookup import load_matrix
from envmatrix.block.block_instructions import TrialOrder
from envmatrix.engines.base import Prepared
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers import block_orders
from envmatrix.launchers.base import refuse_engines_without_commands
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import (
    SlurmClient,
    command_variables,
    nodes_host,
    queued_job,
    read_nodes,
    read_queue,
)
from envmatrix.launchers.slurm.job_loss import clock_offset, explain_loss, held_by_somebody, loss_of_held_job
from envmatrix.launchers.slurm.launcher import SlurmLauncher
from envmatrix.matrix.model import Workload
from envmatrix.results import RunFolder, trial_of
from envmatrix.system.process import Exit
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.experiment_setup import resolve_on_host
from tests.synthetic import make_design, make_environment, make_plan, mixed_plan
from tests.unit.test_turns import experiment as turning

SINFO = """\
n1|debug*|idle|8|2|16000|gpu,fast|none
n2|debug*|down*|8|2|16000|(null)|Not responding | really
n1|long|idle|8|2|16000|gpu,fast|none
half a line|
"""


def state(name, node="n1", reason="None"):
    return queued_job("7", "envmatrix-x-b0000", name, node, reason)


def test_nodes_are_read_with_their_default_partition_state_and_reason():
    first, second, third = read_nodes(SINFO)
    assert (first.name, first.partition, first.default, first.usable) == ("n1", "debug", True, True)
    assert first.features == {"gpu", "fast"}
    assert (second.usable, second.reason, second.features) == (False, "Not responding | really", frozenset())
    assert (third.partition, third.default) == ("long", False)


@pytest.mark.parametrize(
    ("word", "usable"),
    [("idle", True), ("mixed", True), ("allocated", True), ("idle~", True), ("planned", True), ("idle*", False),
     ("down", False), ("drained", False), ("draining", False), ("fail", False), ("maint", False), ("unknown", False)],
)  # fmt: skip
def test_only_nodes_that_can_take_jobs_are_usable(word, usable):
    assert dataclasses.replace(read_nodes(SINFO)[0], state=word).usable is usable


def test_templates_are_filled_from_the_nodes_not_from_the_login_machine():
    host = nodes_host(read_nodes(SINFO))
    assert host.facts() == {
        "logical_cpus": "8", "physical_cores": "4", "cpu_list": "0-7", "physical_cpu_list": "0-3", "last_cpu": "7",
    }  # fmt: skip


@pytest.mark.parametrize("level", ["env: {N: '{numa_nodes}'}", "claims: {memory.numa_nodes: '{numa_nodes}'}"])
def test_a_template_that_slurm_does_not_know_is_refused(tmp_path, level):
    (tmp_path / "matrix.yaml").write_text(f"""
version: 1
factors: {{torch: {{t: {{requirements: torch}}}}, how: {{none: {{}}, all: {{{level}}}}}}}
environments: {{baseline: {{}}, wide: {{how: all}}}}
workloads: {{w: {{model: fashion-cnn}}}}
designs: {{d: {{environments: wide, workloads: w}}}}
""")
    matrix = load_matrix(tmp_path / "matrix.yaml")
    with pytest.raises(InputError, match=r"environment 'wide': .* \{numa_nodes\}: the launcher does not report it"):
        resolve_on_host(nodes_host(read_nodes(SINFO)), matrix, matrix.designs["d"])


def test_what_slurm_does_not_know_of_its_nodes_is_undefined():
    host = nodes_host(read_nodes(SINFO))
    known = {name for name, value in dataclasses.asdict(host).items() if value is not None}
    assert known == {"name", "cpus", "physical_cpus"}


def test_nodes_of_different_shapes_and_no_node_at_all_are_told():
    one = read_nodes(SINFO)[0]
    other = dataclasses.replace(one, name="n9", cpus=64)
    with pytest.raises(InputError, match="n9 has 64 CPUs"):
        nodes_host([one, other])
    with pytest.raises(EngineError, match="n2 is down"):
        nodes_host([read_nodes(SINFO)[1]])


def test_the_queue_is_read_and_foreign_lines_are_passed_over():
    rows = read_queue("7|envmatrix-x-b0000|PENDING||Resources | x\nslurm_load_jobs error\n")
    assert rows == [queued_job("7", "envmatrix-x-b0000", "PENDING", "", "Resources | x")]
    assert rows[0].alive
    assert not any(state(name).alive for name in ("COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"))


def test_variables_that_would_override_a_script_are_left_out():
    given = {"SBATCH_PARTITION": "x", "SLURM_JOB_ID": "1", "SQUEUE_FORMAT": "x", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert command_variables(given) == {"SLURM_CONF": "/c", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("queue", "past", "stopped", "unusable", "cause", "excused", "give_up", "bad_node"),
    [
        (state("TIMEOUT", reason="TimeLimit"), "", None, {}, "TIMEOUT", False, False, ""),
        (state("OUT_OF_MEMORY"), "", None, {}, "OUT_OF_MEMORY", False, False, ""),
        (state("CANCELLED"), "", None, {}, "CANCELLED", True, True, ""),
        (state("CANCELLED"), "", None, {"n1": "down"}, "CANCELLED", True, False, "n1"),
        (state("NODE_FAIL"), "", None, {}, "NODE_FAIL", True, False, "n1"),
        (state("PREEMPTED"), "", None, {}, "PREEMPTED", True, False, ""),
        (state("FAILED"), "", None, {"n2": "down"}, "FAILED", False, False, ""),
        (None, "TIMEOUT", None, {}, "TIMEOUT", False, False, ""),
        (None, "CANCELLED by 0", None, {}, "CANCELLED", True, True, ""),
        (None, "", None, {}, "UNKNOWN", False, False, ""),
        (state("COMPLETED"), "", None, {}, "COMPLETED", True, False, ""),
        (state("FAILED"), "", (69, "n1", "/x"), {}, "exit 69", True, False, "n1"),
        (state("FAILED"), "", (76, "n1", "37 % of its CPUs are busy"), {}, "exit 76", True, False, "n1"),
        (state("FAILED"), "", (75, "n2", ""), {}, "exit 75", True, False, ""),
    ],
)
def test_why_a_job_ended_decides_who_is_blamed(queue, past, stopped, unusable, cause, excused, give_up, bad_node):
    loss = explain_loss(queue, past, stopped, unusable)
    assert (loss.cause, loss.excused, loss.give_up, loss.bad_node) == (cause, excused, give_up, bad_node)
    assert loss.text


@pytest.mark.parametrize(
    ("name", "reason", "held", "by_somebody"),
    [
        ("PENDING", "launch failed requeued held", True, False),
        ("PENDING", "job requeued in held state", True, False),
        ("PENDING", "JobHoldMaxRequeue", True, False),
        ("PENDING", "JobHeldUser", True, True),
        ("PENDING", "JobHeldAdmin", True, True),
        ("REQUEUE_HOLD", "None", True, False),
        ("PENDING", "Resources", False, False),
        ("RUNNING", "None", False, False),
    ],
)
def test_a_held_job_is_told_from_one_that_waits(tmp_path, name, reason, held, by_somebody):
    found = state(name, "", reason)
    pending = PendingBlock(0, {}, BlockFolder(tmp_path), attempt=1)
    assert (bool(found.release), held_by_somebody(pending, found)) == (held, by_somebody)


def test_a_job_that_ran_and_was_requeued_to_be_held_is_kept_by_somebody(tmp_path):
    pending = PendingBlock(0, {}, BlockFolder(tmp_path), attempt=1)
    requeued, failed = (
        state("PENDING", "", reason) for reason in ("job requeued in held state", "launch failed requeued held")
    )
    assert not held_by_somebody(pending, requeued), "it never began: Slurm could not start it"
    (tmp_path / "begun-1").write_text('{"job":"7","node":"n1","epoch":1,"restarts":0}')
    assert held_by_somebody(pending, requeued)
    assert not held_by_somebody(pending, failed)


@pytest.mark.parametrize(
    ("nodes", "unusable", "bad"),
    [
        (["n1"], {}, "n1"),
        (["n1", "n2"], {"n2": "drained (Prolog error)", "n3": "down"}, "n2"),
        (["n1", "n2"], {}, ""),
        ([], {"n3": "down"}, ""),
    ],
)
def test_the_node_on_which_a_job_could_not_be_started_is_named_where_it_is_known(nodes, unusable, bad):
    loss = loss_of_held_job(state("PENDING", "", "launch failed requeued held"), nodes, unusable)
    assert (loss.bad_node, loss.excused, loss.give_up) == (bad, True, False)
    assert "launch failed requeued held" in loss.text


def test_a_clock_is_called_wrong_only_when_it_certainly_is():
    assert clock_offset(1000, submitted=1000, now=1060) == 0
    assert clock_offset(1030, submitted=1000, now=1060) == 0
    assert clock_offset(700, submitted=1000, now=1060) == -300
    assert clock_offset(1360, submitted=1000, now=1060) == 300


def trial_end(folder, body):
    """Return how a trial ended whose job wrote this document."""
    (folder / "t0").mkdir(exist_ok=True)
    (folder / "t0" / "end").write_text(json.dumps(body))
    return BlockFolder(folder).end("t0")


GOOD = {"job": "7", "node": "n1", "status": 0, "ooms": 0, "epoch": 5, "uptime": [10.0, 12.5], "limit": 60}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Exit(0, 2.5)),
        ({"status": 3}, Exit(3, 2.5)),
        ({"status": 139}, Exit(-11, 2.5)),
        ({"status": 124}, Exit(124, 2.5)),
        ({"status": 137, "uptime": [10.0, 76.0], "late": 1}, Exit(-9, 66.0, timed_out=True)),
        ({"status": 137, "ooms": 1}, Exit(-9, 2.5, out_of_memory=True)),
        ({"status": 1, "ooms": 1}, Exit(1, 2.5, out_of_memory=True)),  # a child of the process, or a rank, was killed
        ({"status": 0, "ooms": 1}, Exit(0, 2.5)),
    ],
)
def test_an_end_is_read_as_a_process_that_ended_here_would_be(tmp_path, change, expected):
    assert trial_end(tmp_path, {**GOOD, **change}).exit == expected


@pytest.mark.parametrize("change", [{"uptime": []}, {"status": "x"}, {"node": None, "epoch": None}, {"uptime": None}])
def test_a_damaged_end_is_no_end_and_the_trial_runs_again(tmp_path, change):
    assert trial_end(tmp_path, {**GOOD, **change}) is None
    files = BlockFolder(tmp_path)
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1" / "end").write_text("{half")
    assert files.end("t1") is None
    assert (tmp_path / "t1").exists()  # reading changes nothing
    aside = files.set_aside_if_damaged("t1")
    assert (aside / "end").read_text() == "{half"
    assert not (tmp_path / "t1").exists()
    assert files.set_aside_if_damaged("t1") is None


def test_a_trial_whose_line_was_set_aside_is_not_passed_over_as_done_by_the_next_job(tmp_path):
    plan = make_plan(())
    run = SimpleNamespace(
        design=make_design(plan), created="2026", skipped={}, workloads={}, launcher="slurm", launcher_options={}
    )
    experiment = SimpleNamespace(run=run, folder=RunFolder(tmp_path), plan=plan, engines={})
    made = SlurmLauncher(experiment, None, print, None)
    groups = TrialGrouper(experiment, print)
    files, slots = block_orders.block_folder(made._experiment, 0), plan.block(0)
    files.start_new_attempt()
    for slot in slots:
        files.mark_done_and_delete(slot.trial)
    pending = made._unfinished_block(
        0, slots, SimpleNamespace(is_done=lambda trial: trial == slots[0].trial, groups_of=groups)
    )
    assert list(pending.slots) == [slot.trial for slot in slots[1:]]
    assert [file.stem for file in files.path.glob("*.done")] == [slots[0].trial]


def test_a_job_of_an_earlier_start_that_has_nothing_left_to_do_is_not_waited_for(tmp_path):
    made, said = turning(), []
    made.run = made.run.model_copy(update={"launcher": "slurm"})
    made.folder = RunFolder(tmp_path)
    client = SlurmClient()
    launcher = SlurmLauncher(made, client, said.append, None)
    client.jobs = lambda: [queued_job("7", f"{launcher._prefix}b0000", "RUNNING", "n1", "None")]
    files = block_orders.block_folder(made, 0)
    files.plan(files.start_new_attempt(), [slot.trial for slot in made.plan.block(0)])
    work = SimpleNamespace(is_done=lambda trial: True, groups_of=TrialGrouper(made, said.append))
    assert list(launcher._adopt(work)) == []
    assert (launcher._pending_blocks, said) == ({}, [])


def test_an_engine_that_needs_a_daemon_is_refused_before_anything_runs():
    refuse_engines_without_commands("slurm", [find_engine("local"), find_engine("apptainer")])
    with pytest.raises(EngineError, match="engine docker needs its own service on every node"):
        refuse_engines_without_commands("slurm", [find_engine("local"), find_engine("docker")])


def test_of_a_group_that_took_turns_all_trials_are_collected_and_forgotten_or_none(tmp_path):
    made = turning()
    names = block_orders.group_names(made.plan.block(0), TrialGrouper(made, pytest.fail))
    slots = {slot.trial: slot for slot in made.plan.block(0)}
    group = f"{made.plan.block(0)[0].trial}.turns"
    assert names == dict.fromkeys(slots, group)
    files = BlockFolder(tmp_path)
    pending = PendingBlock(0, slots, files, groups=names)
    for trial in slots:
        (tmp_path / group / trial).mkdir(parents=True)
        (tmp_path / group / trial / "end").write_text(json.dumps({**GOOD, "together": len(slots), "late": 0}))
    assert not pending.unfinished
    trials = block_orders.collected(SimpleNamespace(), pending, print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_orders, "trial_from_files", lambda _, slot, end: trial_of(slot, "ok", ""))
        seen = [next(trials).trial for _ in slots]
        assert seen == list(slots)
        assert (tmp_path / group).exists(), "cut off here, all are read again"
        assert list(trials) == []
    assert (pending.slots, pending.finished) == ({}, len(seen))
    assert [path.name for path in tmp_path.iterdir()] == [f"{group}.done"]


def test_that_a_node_has_no_memory_for_all_of_a_group_at_once_is_told(tmp_path, monkeypatch):
    made, said = turning(), []
    slots = {slot.trial: slot for slot in made.plan.block(0)}
    pending = PendingBlock(0, slots, BlockFolder(tmp_path), groups=dict.fromkeys(slots, "g.turns"))
    for trial in slots:
        (tmp_path / "g.turns" / trial).mkdir(parents=True)
        (tmp_path / "g.turns" / trial / "end").write_text(json.dumps({**GOOD, "together": 1, "late": 0}))
    alone = dataclasses.replace(trial_of(next(iter(slots.values())), "ok", "", node="n1"), together=1)
    monkeypatch.setattr(
        block_orders, "trial_from_files", lambda _, slot, end: dataclasses.replace(alone, trial=slot.trial)
    )
    assert len(list(block_orders.collected(SimpleNamespace(), pending, said.append))) == len(made.plan.arms)
    assert said == ["g.turns ran one process after the other: node n1 has no memory for all of them at once"]


def test_what_takes_no_turns_starts_side_by_side_in_its_job_and_has_one_turn(tmp_path, monkeypatch):
    made = turning(mixed_plan(), environments={"a": make_environment("a", turns=False)})
    block, groups = made.plan.block(0), TrialGrouper(made, lambda _: None)
    pending = PendingBlock(0, {slot.trial: slot for slot in block}, BlockFolder(tmp_path),
                    groups=block_orders.group_names(block, groups))  # fmt: skip
    monkeypatch.setattr(
        block_orders, "make_trial", lambda _, slot, *rest: TrialOrder(slot.trial, slot.arm.environment, (), {}, 9.0)
    )
    parts, failed = block_orders.make_parts(made, pending, groups, 1)
    assert failed == []
    found = {tuple(sorted(trial.title for trial in part.trials)): part.turns.steps for part in parts}
    assert found == {("a", "baseline alone"): 0, ("b", "baseline", "c", "control"): 3}


@pytest.mark.parametrize(
    ("workload", "apart"),
    [
        (Workload(name="w"), 3),
        (Workload(name="w", command=("x",), metric={"steps": "^step"}), 3),
        (Workload(name="w", command=("x",)), 0),
    ],
    ids=["benchmark", "program that tells its steps", "program that tells none"],
)
def test_a_step_in_turns_gets_the_turn_and_the_steps_set_apart_that_its_design_says(tmp_path, workload, apart):
    made = turning(workload=workload, turn=4, turn_apart=3)
    made.folder, made.bench, made.data = RunFolder(tmp_path), tmp_path / "bench", tmp_path / "data"
    keys = {environment.image_key for environment in made.run.environments.values()}
    made.prepared = {(key, "local"): Prepared("i", "local", "", "/python", {}) for key in keys}
    block, groups = made.plan.block(0), TrialGrouper(made, pytest.fail)
    pending = PendingBlock(0, {slot.trial: slot for slot in block}, BlockFolder(tmp_path),
                    groups=block_orders.group_names(block, groups))  # fmt: skip
    (part,), failed = block_orders.make_parts(made, pending, groups, 1)
    assert failed == []
    assert (part.turns.steps, [trial.apart for trial in part.trials]) == (4, [apart] * len(block))
    assert {trial.pauses_itself for trial in part.trials} == {bool(workload.command)}


def test_a_group_of_which_one_end_is_damaged_is_set_aside_as_a_whole(tmp_path):
    made, said = turning(), []
    slots = {slot.trial: slot for slot in made.plan.block(0)}
    pending = PendingBlock(0, slots, BlockFolder(tmp_path), groups=dict.fromkeys(slots, "g.turns"))
    for trial in slots:
        (tmp_path / "g.turns" / trial).mkdir(parents=True)
        (tmp_path / "g.turns" / trial / "end").write_text(json.dumps(GOOD))
    (tmp_path / "g.turns" / list(slots)[-1] / "end").write_text("{half")
    assert list(block_orders.collected(SimpleNamespace(), pending, said.append)) == []
    assert list(pending.slots) == list(slots)
    assert "g.turns left is damaged" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["g.turns.damaged1"]


def test_an_engine_whose_commands_no_script_can_stop_takes_no_turns_elsewhere_and_is_told():
    made, told = turning(make_plan(("a",), engines=("enroot",)), engines=("enroot",)), []
    groups = TrialGrouper(made, told.append)
    assert block_orders.group_names(made.plan.block(0), groups) == {}
    assert "engine enroot cannot pause a process" in told[0]


def test_what_ended_late_in_turns_timed_out_whatever_its_status_says(tmp_path):
    ends = [trial_end(tmp_path, {**GOOD, "status": 143, "together": 2, "late": late}) for late in (0, 1)]
    assert [(end.together, end.exit.timed_out) for end in ends] == [(2, False), (2, True)]

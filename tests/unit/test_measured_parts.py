"""Long measurements over several machines: which part is continued, what is kept of it, and their agreement."""

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.results import RunFolder
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.measurements import fold_trials
from envmatrix.system.atomic_files import append_line
from tests.synthetic import Machine, make_plan, make_trials, write_run
from validation import agreement, paired, precision
from validation import measured_parts as parts

PLAN = {"long": 60.0, "designs": ("default",)}


def here(folder, plan=PLAN, said=None, node=""):
    return parts.part_here(folder, plan, node, said.append if said is not None else lambda _: None)


def test_a_part_goes_on_on_its_machine_with_its_bench_and_plan_and_else_a_new_one_begins_and_says_why(
    tmp_path, monkeypatch
):
    said = []
    assert here(tmp_path, said=said) == tmp_path / "1"
    assert here(tmp_path, said=said) == tmp_path / "1"
    assert said == [f"{tmp_path / '1'} begins"]
    assert here(tmp_path, {**PLAN, "long": 20.0}, said) == tmp_path / "2"
    assert said[-1].endswith("2 begins: 1 is of another plan (long)")
    with monkeypatch.context() as patch:
        patch.setattr(parts, "bench_here", lambda: "0123456789ab")
        assert here(tmp_path, said=said) == tmp_path / "3"
    assert said[-1].endswith("3 begins: 2 is of another bench/")
    assert here(tmp_path, said=said, node="n2") == tmp_path / "4"
    assert said[-1].endswith("4 begins: 3 is of another machine")
    (tmp_path / "4/machine").unlink()
    assert here(tmp_path, said=said) == tmp_path / "5", "what was committed and cloned is of nobody knows where"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/part.json").touch()
    for _ in range(6):
        (tmp_path / f"{parts.part_here(tmp_path, PLAN, str(_), said.append).name}/machine").unlink()
    assert [part.path.name for part in parts.parts_in(tmp_path)] == [str(number) for number in range(1, 12)]


def test_a_part_names_no_machine(tmp_path):
    part = here(tmp_path, node="n2")
    told = (part / "part.json").read_text() + (part / "machine").read_text()
    assert parts.this_host().name not in told
    assert "n2" not in json.loads((part / "part.json").read_text())["plan"]


def test_figures_say_their_parts_and_which_bench_each_has(tmp_path, monkeypatch):
    for bench in ("aaa1", "aaa1", "bbb2"):
        monkeypatch.setattr(parts, "bench_here", lambda bench=bench: bench)
        (here(tmp_path) / "machine").unlink()
    first, second = parts.told(parts.parts_in(tmp_path))
    assert first.startswith("3 parts: 1 (20")
    assert "CPUs of" in first
    assert second.startswith("these parts have different bench/: aaa1 (1, 2), bbb2 (3)")
    assert [line[:8] for line in parts.told(parts.parts_in(tmp_path, "bbb"))] == ["1 part: "]
    with pytest.raises(InputError, match="no part of bench ccc"):
        parts.chosen_parts(SimpleNamespace(to=tmp_path, of_bench="ccc"))


def test_what_is_kept_of_a_run_says_what_the_run_says_and_is_small(tmp_path):
    plan = make_plan(("fast", "slow"))
    folder = write_run(tmp_path / "run", plan, Machine({"fast": 1.2}, outcome={"slow": "failed"}), 8)
    turns = [{"apart_ns": [3], "steps": 2}]
    for trial in make_trials(plan, Machine({}), 9):
        if trial.block == 8 and trial.outcome == "ok":
            document = {**trial.document, "timing": {**trial.document["timing"], "turns": turns}}
            folder.append(replace(trial, document=document, together=4))
    before = estimate(plan, fold_trials(plan, folder.trials(plan)))
    facts = fold_trials(plan, folder.trials(plan)).facts
    parts.keep(folder)
    size = folder.trials_file.stat().st_size
    again = folder.path / parts.KEPT
    written = again.stat().st_mtime_ns
    parts.keep(folder)
    assert again.stat().st_mtime_ns == written, "what is the same is not written again"
    folder.trials_file.unlink()
    parts.keep(folder)
    assert again.stat().st_size < size / 6
    kept = list(parts.trials_of(folder, plan))
    assert not any("evidence" in trial.document for trial in kept if trial.document)
    assert repr(estimate(plan, fold_trials(plan, kept)).effects) == repr(before.effects)
    assert sum(one.in_turns for one in fold_trials(plan, kept).facts.values()) == sum(
        one.in_turns for one in facts.values()
    )
    again.write_bytes(gzip.compress(b"x")[:-9])
    with pytest.raises(EnvmatrixError, match="restore it from a copy"):
        list(parts.trials_of(folder, plan))


def test_the_steps_of_turns_are_kept_for_whoever_takes_them(tmp_path):
    plan = make_plan(("fast",))
    folder = write_run(tmp_path / "run", plan, Machine({}), 0)
    for number, trial in enumerate(make_trials(plan, Machine({}), 6)):
        steps = [20_000_000 + 1_000_000 * (number * place % 5) for place in range(4)]
        timing = {**trial.document["timing"], "steps_ns": steps, "turns": [{"apart_ns": [30], "steps": 2}] * 2}
        folder.append(replace(trial, document={**trial.document, "timing": timing}, together=3))
    said = precision.lengths(folder, 5.0)
    assert any("turns of 2" in line for line in said)
    parts.keep(folder, steps=True)
    folder.trials_file.unlink()
    assert precision.lengths(folder, 5.0) == said


def measured_part(part, speed, long_speed, seed):
    for way, ratio, blocks in (("turns", speed, 12), ("long", long_speed, 6)):
        plan = make_plan(("fast", "same"))
        write_run(part / f"mine-{way}", plan, Machine({"fast": ratio}, noise=0.01), blocks, seed=seed)
        for block in range(blocks):
            line = {"design": "mine", "way": way, "block": block, "seconds": 2.0}
            append_line(part / "blocks.jsonl", json.dumps(line))


def test_agreement_is_of_all_parts_whose_effects_may_differ(tmp_path, capsys):
    for number, speed in enumerate((1.3, 1.1)):
        part = here(tmp_path)
        measured_part(part, speed, speed, number)
        (part / "machine").unlink()
    (here(tmp_path) / "mine-turns").mkdir()
    chosen = SimpleNamespace(to=tmp_path, of_bench="", minutes=0)
    assert agreement.measure(chosen) == 0
    (found,) = json.loads((tmp_path / "agreement.json").read_text())["designs"]
    assert found["blocks"] == {"1": {"turns": 12, "long": 6}, "2": {"turns": 12, "long": 6}}
    said = capsys.readouterr().out
    assert "part 1: 12 and 6; part 2: 12 and 6" in said
    assert "3 parts: " in said
    assert "arms that disagree by more than 3 %: none" in said
    rows = {row["arm"].partition(":")[0]: row for row in found["arms"]}
    assert rows["fast"]["agreement"] == "agree"
    alone = agreement.compared(parts.parts_in(tmp_path)[:1], "mine")
    lone = next(row for row in alone["arms"] if row["arm"].startswith("fast"))
    widths = [row["turns_over_long"]["high"] / row["turns_over_long"]["low"] for row in (rows["fast"], lone)]
    assert widths[0] < widths[1], "two parts say more than one"
    for file in tmp_path.glob("*/*/trials.jsonl"):
        file.unlink()
    assert agreement.compared(parts.parts_in(tmp_path), "mine") == agreement.compared(parts.parts_in(tmp_path), "mine")
    assert json.loads(json.dumps(agreement.compared(parts.parts_in(tmp_path), "mine"))) == found


def test_an_arm_that_turns_change_is_named(tmp_path, capsys):
    measured_part(here(tmp_path), 1.3, 1.1, 1)
    assert agreement.measure(SimpleNamespace(to=tmp_path, of_bench="", minutes=0)) == 0
    assert "arms that disagree by more than 3 %: fast:cnn@local" in capsys.readouterr().out
    assert RunFolder(tmp_path / "1/mine-turns").trials_file.exists()


def reference_in_turns(step_s):
    """Return a measured way of running whose reference takes ``step_s`` per step."""
    design = SimpleNamespace(trial_limit=300.0)
    arms = [SimpleNamespace(name="baseline", reference=None)]
    plan = SimpleNamespace(arms=arms)
    experiment = SimpleNamespace(folder=None, plan=plan, run=SimpleNamespace(design=design))
    return SimpleNamespace(experiment=experiment, median=lambda name, metric: step_s)


@pytest.mark.parametrize(
    ("seconds", "stretch", "steps", "own"),
    [
        (60.0, 0.0, 2000, {"trial_limit": 600.0}),
        (20.0, 5.0, 4 * 167, {"trial_limit": 300.0, "schedule": "turns", "turn": 167, "turn_apart": 34}),
        (22.0, 5.0, 5 * 167, {"trial_limit": 300.0, "schedule": "turns", "turn": 167, "turn_apart": 34}),
    ],
)
def test_long_trials_go_on_for_a_stretch_or_to_their_end(monkeypatch, seconds, stretch, steps, own):
    way = reference_in_turns(0.03)
    monkeypatch.setattr(paired, "read_measurements", lambda *_: way)
    assert agreement.as_long(way, seconds, stretch) == ({"steps": steps}, own)


def test_trials_of_stretches_and_whole_ones_are_not_judged_together(tmp_path):
    part = parts.part_here(tmp_path, {"long": 60.0}, "", print)
    with pytest.raises(InputError, match="holds other long trials"):
        agreement.run(SimpleNamespace(to=tmp_path, stretch=5.0, paired=False))
    assert parts.parts_in(tmp_path)[0].path == part, "nothing was begun"
    assert len(parts.parts_in(tmp_path)) == 1

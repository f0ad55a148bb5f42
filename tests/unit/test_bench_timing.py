"""The timed loop under a fake clock: every nanosecond is counted in the right place."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from bench import gate, timed_loop  # noqa: E402 - it imports torch
from bench.dataset_tensors import Batch  # noqa: E402
from bench.devices import Cpu  # noqa: E402
from bench.rank_and_device import Place  # noqa: E402

WAIT, STEP, FIRST = 5, 7, 100


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=1000)
    monkeypatch.setattr("time.perf_counter_ns", lambda: made.now)
    return made


class Gate:
    """Grants the given turns, each after a pause that no measured time may include."""

    PAUSE = 10**9

    def __init__(self, clock, *turns):
        self.clock, self.turns, self.left, self.ended = clock, list(turns), [], False

    def turn(self, left):
        self.clock.now += self.PAUSE
        self.left.append(left)
        apart, counted = self.turns.pop(0)
        return gate.Turn(apart, min(counted, left))

    def wait_for_extra_seconds(self):
        self.clock.now += self.PAUSE
        self.ended = True
        return self.goes_on_s

    goes_on_s = None


def taken(clock, length, device=None, log=None, at=None, cold=()):
    """Run all steps: waiting for a batch takes ``WAIT``, a step ``STEP``, the first or a cold one ``FIRST``."""

    def source():
        for number in itertools.count():
            clock.now += WAIT
            yield Batch(torch.empty(0), torch.empty(0), 10 + number)

    def step(batch):
        clock.now += FIRST if batch.total in (10, *cold) else STEP
        return torch.tensor(float(batch.total))

    place = Place(device or Cpu())
    if log is not None:
        place = SimpleNamespace(device=place.device, means=place.means, barrier=lambda: log.append(clock.now))
    loop = timed_loop.Loop(source(), place, length, at)
    timed_loop.drive(step, loop)
    return loop.end()


def test_each_part_of_the_loop_has_its_time(clock):
    length = timed_loop.Length(checked=2, warm_up=3, timed=5, epoch=2, compiles=True)
    found = taken(clock, length)
    assert found.steps_ns == [WAIT + STEP] * 5
    assert (found.waits_ns, found.working_ns) == ([WAIT] * 5, [STEP] * 5)
    assert found.times["training_ns"] == 5 * (WAIT + STEP)
    assert found.times["epochs_ns"] == [2 * (WAIT + STEP)] * 2
    assert (found.times["compile_ns"], found.times["first_step_ns"]) == (WAIT + FIRST, WAIT + STEP)
    assert found.times["warmup_ns"] == 3 * (WAIT + STEP)
    assert found.samples == 15 + 16 + 17 + 18 + 19
    assert (found.losses, found.last_loss) == ([10.0, 11.0], 19.0)


def test_a_long_look_times_every_step_from_the_first_one_on(clock):
    length = timed_loop.Length(checked=2, warm_up=3, timed=5, epoch=2).steady_state_length(200 * 12e-9)
    found = taken(clock, length)
    assert found.steps_ns[:2] == [WAIT + FIRST, WAIT + STEP]
    assert found.times["training_ns"] == sum(found.steps_ns) >= 200 * 12
    assert len(found.steps_ns) == 200 - FIRST // 12 + 1
    assert (found.times["warmup_ns"], found.losses, found.times["turns"]) == (0, [], None)


def test_of_a_long_look_only_the_step_that_compiles_is_not_timed(clock):
    found = taken(
        clock, timed_loop.Length(checked=0, warm_up=3, timed=5, epoch=0, compiles=True).steady_state_length(1e-6)
    )
    assert (found.times["compile_ns"], found.times["first_step_ns"]) == (WAIT + FIRST, None)
    assert set(found.steps_ns) == {WAIT + STEP}


def test_a_long_look_goes_on_while_its_steps_are_few_but_not_for_ever(clock):
    found = taken(clock, timed_loop.Length(0, 0, 5, 0).steady_state_length(150e-9))
    assert len(found.steps_ns) < timed_loop.ENOUGH
    assert 450 <= found.times["training_ns"] <= 450 + WAIT + STEP
    assert len(taken(clock, timed_loop.Length(0, 0, 5, 0).steady_state_length(300e-9)).steps_ns) == timed_loop.ENOUGH


@pytest.mark.parametrize(("last", "is_steady"), [(100, True), (103, True), (104, False), (96, False)])
def test_steps_look_steady_where_the_last_two_quarters_take_the_same(last, is_steady):
    assert timed_loop._looks_steady([500] * 40 + [100] * 20 + [last] * 20) is is_steady


def test_without_compiling_the_first_step_is_the_first_and_without_an_epoch_there_is_none(clock):
    found = taken(clock, timed_loop.Length(checked=0, warm_up=2, timed=1, epoch=0))
    assert (found.times["compile_ns"], found.times["first_step_ns"], found.times["warmup_ns"]) == (
        None,
        WAIT + FIRST,
        FIRST + STEP + 2 * WAIT,
    )
    assert (found.times["epochs_ns"], found.losses) == ([], [])


def test_torch_compile_has_an_untimed_step_even_without_a_warm_up(clock):
    found = taken(clock, timed_loop.Length(checked=0, warm_up=0, timed=2, epoch=0, compiles=True))
    assert (found.times["compile_ns"], found.times["first_step_ns"], found.times["warmup_ns"]) == (
        WAIT + FIRST,
        None,
        0,
    )
    assert found.steps_ns == [WAIT + STEP] * 2


def test_nothing_untimed_is_nothing_known(clock):
    found = taken(clock, timed_loop.Length(checked=0, warm_up=0, timed=1, epoch=1))
    assert (found.times["compile_ns"], found.times["first_step_ns"], found.times["warmup_ns"]) == (None, None, 0)
    assert found.times["epochs_ns"] == [WAIT + FIRST]


def test_what_a_device_tells_of_compiling_counts(clock):
    class Telling(Cpu):
        def compile_ns(self):
            return 77

    assert taken(clock, timed_loop.Length(1, 1, 1, 0, compiles=True), Telling()).times["compile_ns"] == 77
    assert taken(clock, timed_loop.Length(1, 1, 1, 0), Telling()).times["compile_ns"] == 77


def test_all_processes_start_the_timed_part_together_and_once(clock):
    log = []
    taken(clock, timed_loop.Length(checked=1, warm_up=1, timed=3, epoch=0), log=log)
    assert log == [1000 + 2 * WAIT + FIRST + STEP]


def test_in_turns_only_turns_are_timed_and_their_first_steps_are_set_apart(clock):
    at = Gate(clock, (2, 2), (1, 2), (0, 2))
    found = taken(clock, timed_loop.Length(checked=0, warm_up=1, timed=5, epoch=2), at=at)
    assert (at.left, at.ended) == ([5, 3, 1], True)
    assert found.times["turns"] == [
        {"apart_ns": [WAIT + STEP] * 2, "steps": 2}, {"apart_ns": [WAIT + STEP], "steps": 2},
        {"apart_ns": [], "steps": 1},
    ]  # fmt: skip
    assert found.steps_ns == [WAIT + STEP] * 5
    assert (found.waits_ns, found.times["training_ns"]) == ([WAIT] * 5, 5 * (WAIT + STEP))
    assert found.samples == (13 + 14) + (16 + 17) + 18  # the first batch has 10; batches 1, 2 and 5 are excluded
    assert (found.times["epochs_ns"], found.last_loss) == ([], 18.0)


@pytest.mark.parametrize(
    ("cold", "start"),
    [((), 1.0), ((11, 12, 14, 15), (WAIT + FIRST) / (WAIT + STEP)), ((12, 15), 1.0), ((11, 14), 1.0)],
)
def test_how_cold_turns_begin_is_told_from_their_first_counted_steps_and_those_before_them(clock, cold, start):
    length = timed_loop.Length(checked=0, warm_up=1, timed=4, epoch=0)
    found = taken(clock, length, at=Gate(clock, (1, 2), (1, 2)), cold=cold)
    assert found.turn_start == start
    assert taken(clock, length, cold=cold).turn_start is None


def test_before_its_first_turn_a_process_takes_one_step_and_the_rest_of_its_warm_up_within_it(clock):
    at, asked = Gate(clock, (1, 2)), []
    turn = at.turn
    at.turn = lambda left: asked.append(clock.now) or turn(left)
    found = taken(clock, timed_loop.Length(checked=0, warm_up=3, timed=2, epoch=0), at=at)
    assert asked == [1000 + WAIT + FIRST]
    assert (found.times["first_step_ns"], found.times["warmup_ns"]) == (WAIT + FIRST, WAIT + FIRST + 2 * (WAIT + STEP))
    assert found.times["turns"] == [{"apart_ns": [WAIT + STEP], "steps": 2}]


def test_nothing_is_left_out_of_the_start_of_what_takes_turns():
    source = (Path(__file__).parents[2] / "bench" / "trial_process.py").read_text()
    assert "gc." not in source, "what a process has allocated before decides how its allocator behaves"
    assert "sys.modules" not in source


def test_in_one_go_there_are_no_turns(clock):
    assert taken(clock, timed_loop.Length(checked=0, warm_up=1, timed=2, epoch=0)).times["turns"] is None


def test_a_process_goes_on_for_the_seconds_of_steps_that_the_gate_names(clock):
    step = WAIT + STEP
    at = Gate(clock, (2, 2), (1, 4), (1, 4), (0, 9))
    at.goes_on_s = 12 * step / 1e9
    length, source = timed_loop.Length(checked=0, warm_up=3, timed=2, epoch=0), endless(clock)
    loop = timed_loop.Loop(source, Place(Cpu()), length, at)
    timed_loop.drive(lambda _: tick(clock), loop)
    assert len(loop.end().steps_ns) == 2, "no later step is part of the trial"
    assert (loop.goes_on_s, loop.ran_ns) == (at.goes_on_s, 6 * step), "the first step ran next to others"
    steps = timed_loop.LaterSteps(source, Place(Cpu()), at, loop.goes_on_s, loop.ran_ns, step)
    timed_loop.drive(lambda _: tick(clock), steps)
    assert at.left == [2, 12, 7, 2]
    stretches = steps.times()["stretches"]
    assert steps.times()["after_ns"] == 6 * step
    assert [(len(one["apart_ns"]), one["counted_ns"]) for one in stretches] == [
        (1, [step] * 4), (1, [step] * 4), (0, [step] * 2),
    ]  # fmt: skip


def endless(clock):
    """Yield batches for which a process waits."""
    while True:
        clock.now += WAIT
        yield Batch(torch.empty(0), torch.empty(0), 1)


def tick(clock):
    """Take a step."""
    clock.now += STEP


def test_counters_of_turns_are_summed_and_one_that_was_not_read_makes_the_sum_unknown(clock, monkeypatch):
    grown = iter([{"a": 1, "b": 2.0}, {"a": 100, "b": 100.0}, {"a": 3, "b": None}])
    monkeypatch.setattr(timed_loop.process_resource_usage, "since", lambda _before: next(grown))
    found = taken(clock, timed_loop.Length(checked=0, warm_up=0, timed=2, epoch=0), at=Gate(clock, (0, 1), (1, 1)))
    assert (found.counted["a"], found.counted["b"]) == (4, None)


def test_a_loss_that_is_no_number_is_null(clock):
    loop = timed_loop.Loop(
        iter([Batch(torch.empty(0), torch.empty(0), 1)]), Place(Cpu()), timed_loop.Length(0, 0, 1, 0)
    )
    timed_loop.drive(lambda _batch: torch.tensor(float("nan")), loop)
    assert loop.end().last_loss is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (0.91, 10), (0.99, 10), (1.0, 10), (0.0, 1)])
def test_a_percentile_is_a_sample_that_was_taken(share, expected):
    assert timed_loop.percentile([10, 1, 9, 2, 8, 3, 7, 4, 6, 5], share) == expected
    assert timed_loop.percentile([], share) is None


def test_alone_a_place_waits_for_nobody_and_a_mean_is_over_its_processes():
    place = Place(Cpu(), world=4)
    place.barrier()
    assert place.means([torch.tensor(8.0), torch.tensor(2.0)]) == [2.0, 0.5]
    assert place.means([]) == []


def test_in_a_group_losses_are_summed_and_weights_are_those_of_rank_0(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        place = Place(Cpu(), world=2, backend="gloo")
        place.barrier()
        assert place.means([torch.tensor(8.0, requires_grad=True)]) == [4.0]
        place.give_all_the_weights_of_rank_0(torch.nn.Linear(2, 2))
    finally:
        torch.distributed.destroy_process_group()

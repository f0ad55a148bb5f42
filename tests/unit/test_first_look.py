"""The trial run of a program on the command line."""

import fcntl
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.api.user_program import environment_selection as program_environments
from envmatrix.api.user_program import matrix_for_program
from envmatrix.api.user_program.environment_selection import time_text, total_time_text
from envmatrix.api.user_program.metric_choice import choose_metric
from envmatrix.api.user_program.program_options import ProgramRequest
from envmatrix.durations_and_sizes import as_duration, parse_duration
from envmatrix.errors import InputError, NothingRanError
from envmatrix.evidence.trial_record import Record
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import FOR_ANY, FOR_TORCH
from envmatrix.plan.environment import all_libraries
from envmatrix.trials import orphans
from envmatrix.trials.overrides import Overrides, apply_overrides
from tests import shipped_levels


def test_a_first_look_runs_alone_and_nothing_of_an_earlier_trial_beside_it(tmp_path, monkeypatch):
    """The trial run sets budget and limits: another measurement at the same time would distort both."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))
    done = []
    monkeypatch.setattr(orphans, "end_processes", lambda: done.append("swept"))

    def look(*_):
        with (tmp_path / "measuring.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done.append("looked")
        return SimpleNamespace(output="it")

    monkeypatch.setattr(matrix_for_program, "run_once", look)
    seen = matrix_for_program._run_program(None, None, 2, lambda _: None, done.append)
    assert (seen.output, done) == ("it", ["swept", "looked", "it", "looked", "it"])


def lacking(monkeypatch, *libraries):
    """Let this machine have no such libraries; return the list of what is prepared for each batch of environments."""
    tried = []

    def prepare(environments, builders, _progress):
        keys = {library.key for library in builders[None].libraries}
        tried.append(keys)
        assert {key for entry in environments.values() for key, _ in entry.preload} == keys
        reasons = {
            (name, "local"): f"library {key} is not available: no package\n  -> apt-get install it"
            for name, entry in environments.items()
            for key, _ in entry.preload
            if key in libraries
        }
        missing = dict.fromkeys(keys.intersection(libraries), "no package\n  -> apt-get install it")
        return {("mine", "local"): SimpleNamespace(missing=missing)}, reasons

    monkeypatch.setattr(program_environments, "prepare_images", prepare)
    return tried


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that makes a matrix for a program with this run time."""
    monkeypatch.chdir(tmp_path)
    for module in (matrix_for_program, program_environments):
        monkeypatch.setattr(module, "usable_environments", lambda torch: list(FOR_TORCH if torch else FOR_ANY))
    lacking(monkeypatch)

    def make(wall_s, said=None, atlas=None, **asked):
        seen = SimpleNamespace(wall_s=wall_s, output="", record=Record(evidence=None), arrivals=())
        monkeypatch.setattr(matrix_for_program, "_run_program", lambda *_: seen)
        request = ProgramRequest(("python", "mine.py"), atlas=atlas)
        return matrix_for_program.run_program_and_draft_matrix(
            request, Overrides(**asked), Path("matrix.yaml"), ([] if said is None else said).append, print
        )

    return make


@pytest.mark.parametrize("wall_s", [5.0, 5.4, 6.0])
def test_a_program_of_five_seconds_has_its_first_table_in_three_minutes(made, wall_s):
    said = []
    design = made(wall_s, said).matrix.designs["default"]
    assert design.environments == ("tcmalloc", "one-thread"), "an allocator and threads, not allocators only"
    assert (design.budget, design.claims_first) == (120.0, True)
    block_s = wall_s * (len(design.environments) + 2)
    assert block_s * 6.5 > design.budget, "it ends after the six blocks that a claim needs"
    assert "6 blocks of 4 trials, or more; the first blocks will show how long that takes" in said


def test_a_first_look_that_was_disturbed_makes_the_run_no_longer(made):
    """Guards against a longer run after a disturbed trial run: it took 8.4 s, trials 5.5 s, and the run 4 minutes."""
    design = made(8.4).matrix.designs["default"]
    assert (len(design.environments), design.budget, design.claims_first) == (2, 120.0, True)


@pytest.mark.parametrize(("processes", "schedule"), [(0, "auto"), (1, "sequential")])
def test_a_program_that_was_seen_to_work_on_a_gpu_takes_no_turns(made, monkeypatch, processes, schedule):
    monkeypatch.setattr(matrix_for_program, "_gpu_process_count", lambda _: processes)
    found = made(5.0)
    assert (found.matrix.designs["default"].schedule, found.on_gpu) == (schedule, processes)


def test_a_budget_that_is_given_is_kept_whatever_can_be_claimed_then(made):
    made_of = made(60.0, budget="5m")
    design = made_of.matrix.designs["default"]
    assert (design.budget, design.claims_first) == (300.0, False)
    assert "claims_first" not in made_of.text
    saved = made(60.0).matrix
    assert apply_overrides(saved, "default", Overrides()).claims_first
    assert not apply_overrides(saved, "default", Overrides(budget="5m")).claims_first


def test_what_is_left_out_to_be_done_soon_is_told_with_the_budget_that_has_time_for_all(made):
    first = made(5.0)
    assert first.more.startswith("not tested yet: glibc-tuned, mimalloc, jemalloc, pinned (`--budget 5m20s` ")
    assert set(made(5.0, budget="5m20s").matrix.designs["default"].environments) == set(FOR_ANY)
    assert made(5.0, budget="5m20s").more == ""
    assert made(5.0, environments=("pinned",)).more == "", "it was said which"


def test_an_environment_that_cannot_be_had_makes_room_for_the_next(made, monkeypatch):
    tried = lacking(monkeypatch, "malloc-tcmalloc", "malloc-mimalloc")
    said = []
    first = made(5.0, said)
    assert first.matrix.designs["default"].environments == ("one-thread", "glibc-tuned")
    left_out = [line for line in said if line.startswith("left out, because not available on this machine: ")]
    assert [line.partition(": ")[2] for line in left_out] == [
        "tcmalloc (tcmalloc: library malloc-tcmalloc is not available: no package)"
    ]
    assert first.more.startswith("not tested yet: mimalloc, jemalloc, pinned (")
    assert tried == [{"malloc-tcmalloc"}, set()], "no library is fetched for an environment that is not reached"
    assert made(5.0, budget="5m20s").matrix.designs["default"].environments == (
        "one-thread", "glibc-tuned", "jemalloc", "pinned",
    )  # fmt: skip
    assert "# - tcmalloc" in first.text, "the matrix that is saved has it as a comment"


def test_a_library_that_is_missing_is_tried_once_for_all_environments_with_it(monkeypatch):
    tried = lacking(monkeypatch, "malloc-jemalloc-decay", "openmp-intel", "malloc-tcmalloc")
    names = ("pytorch-ci", "tcmalloc", "intel-omp", "glibc-tuned", "one-thread")
    matrix = shipped_levels.matrix()
    available, reasons = program_environments._find_available(matrix, names, 2, "local", lambda _: None)
    assert available == ["glibc-tuned", "one-thread"]
    assert set(reasons) == {"pytorch-ci", "tcmalloc", "intel-omp"}
    assert tried == [{"malloc-jemalloc-decay", "openmp-intel", "malloc-tcmalloc"}, set()]


def test_environments_that_the_user_named_stay_unless_none_can_be_had(made, monkeypatch):
    lacking(monkeypatch, "malloc-tcmalloc", "malloc-jemalloc-decay")
    said = []
    assert made(5.0, said, environments=("tcmalloc", "pinned")).matrix.designs["default"].environments == (
        "tcmalloc", "pinned",
    )  # fmt: skip
    assert not any(line.startswith("left out") for line in said), "the run itself tells what it skips"
    with pytest.raises(NothingRanError, match="none of tcmalloc, jemalloc-decay is available on this machine") as told:
        made(5.0, environments=("tcmalloc", "jemalloc-decay"))
    assert (told.value.remedy, told.value.exit_code) == ("apt-get install it", 4)


def test_only_what_is_tried_is_fetched_and_the_matrix_that_is_saved_has_all(made):
    first = made(5.0)
    assert [library.files for library in all_libraries(first.matrix)] == [("libtcmalloc_minimal.so.4",)]
    assert len(all_libraries(parse(first.text, Path("matrix.yaml")))) > 3
    named = made(5.0, environments=("jemalloc",)).matrix
    assert [library.files for library in all_libraries(named)] == [("libjemalloc.so.2",)]
    with pytest.raises(InputError, match="did you mean 'jemalloc'"):
        made(5.0, environments=("jemaloc",))


def test_a_short_program_is_tried_in_all_and_a_long_one_in_two(made):
    assert set(made(1.0).matrix.designs["default"].environments) == set(FOR_ANY)
    long = made(60.0).matrix.designs["default"]
    assert (len(long.environments), long.budget, long.claims_first) == (2, 120.0, True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(24.3, "25s"), (60, "60s"), (118.2, "119s"), (149, "2m30s"), (380, "6m20s"), (599, "10m"), (601, "11m")],
)
def test_a_budget_is_written_as_it_is_read_and_hardly_longer(seconds, text):
    assert as_duration(seconds) == text
    assert seconds <= parse_duration(text) < seconds + 60


@pytest.mark.parametrize(
    ("asked", "wall_s", "said"),
    [
        ({}, 600.0, "6 blocks of 4 trials, or more: about 4h; fewer steps or epochs take less"),
        ({"budget": "5m"}, 600.0, "budget 5m: time for 0 trials like the trial run; a verdict needs 24: use --budget "
         "5h12m or fewer steps or epochs. One block of 4 runs in any case: 40m"),
        ({"budget": "30m"}, 30.0, "budget 30m: time for 60 trials like the trial run; a verdict needs 42"),
        ({"budget": "90s"}, 5.0, "budget 90s: time for 18 trials like the trial run; a verdict needs 24: use --budget "
         "2m40s"),
    ],
)  # fmt: skip
def test_a_program_that_is_too_slow_for_its_budget_is_told_with_one_that_is_enough(made, asked, wall_s, said):
    lines = []
    made(wall_s, lines, **asked)
    assert said in lines


@pytest.mark.parametrize(
    ("asked", "seconds", "said"),
    [
        ({}, 30.0, "; a verdict needs 24 such runs: 12m or more"),
        ({"environments": ("a",), "min_blocks": 4}, 30.0, "; a verdict needs 12 such runs: 6m or more"),
        ({"budget": "5m"}, 10.0, "; a verdict needs 24 such runs: 4m or more"),
        ({"budget": "5m"}, 30.0, "; a verdict needs 24 such runs: 12m or more, and --budget 5m is too short"),
        ({"max_blocks": 1}, 30.0, ""),
    ],
)
def test_while_a_slow_program_runs_its_user_is_told_how_long_all_takes_at_least(asked, seconds, said):
    assert total_time_text(seconds, 1, Overrides(**asked)) == said


STEPS = "".join(f"step {number}: loss 0.5\n" for number in range(40)) + "throughput: 12.5 img/s\n"


#: Arrival of the lines of a program that prints at each step: all at once, or one after another.
AT_ONCE = [(0.0, 0), (2.0, len(STEPS))]
ONE_BY_ONE = [(0.05 * number, 18 * number) for number in range(50)]


def test_steps_are_timed_if_that_is_asked_for():
    source, why = choose_metric("", "^step", STEPS)
    assert (source.steps, source.warmup) == ("^step", 8)
    assert "40 lines" in why
    assert choose_metric("", "^step [12]:", STEPS)[0].warmup == 1, "two lines"


@pytest.mark.parametrize("output", [STEPS, STEPS.replace("step", "\x1b[1mstep\x1b[0m")])
def test_steps_whose_lines_come_one_after_another_are_timed_and_the_number_that_is_left_is_told(output):
    times = [(0.05 * number, 40 * number) for number in range(50)]
    source, why = choose_metric("", "", output, 3.0, times)
    assert source.steps == "^step [0-9]+"
    assert "to use throughput, 12.5 img/s instead: --metric-regex " in why


@pytest.mark.parametrize(
    "arrivals", [(), AT_ONCE, [(0.001 * number, 18 * number) for number in range(50)], ONE_BY_ONE[:20]]
)
def test_steps_whose_lines_come_together_or_too_fast_to_be_timed_are_not_chosen(arrivals):
    assert choose_metric("", "", STEPS, 3.0, ONE_BY_ONE)[0].steps
    assert choose_metric("", "", STEPS, 3.0, arrivals)[0].regex


def test_a_pattern_is_not_refused_for_lines_that_a_long_output_left_out():
    cut = "start\n[... 3000000 bytes left out ...]\nend\n"
    assert choose_metric("", "^step", cut)[0].steps == "^step"
    assert choose_metric("speed: (.*)", "", cut)[0].regex == "speed: (.*)"


def test_steps_on_both_sides_of_what_is_left_out_are_steps():
    lines = [f"step {number}: loss 0.5" for number in range(400)]
    cut = "\n".join([*lines[:40], "step 4\n[... 3000000 bytes left out ...]\np 359: loss 0.5", *lines[360:]])
    assert choose_metric("", "", cut, 9.0, ONE_BY_ONE)[0].steps == "^step [0-9]+"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("^stride", "matches nothing"),
        ("^step 7:", "matches only one line"),
        ("step (", "not a valid regular"),
    ],
)
def test_a_pattern_of_steps_that_is_of_no_use_is_an_error(pattern, said):
    with pytest.raises(InputError, match=said):
        choose_metric("", pattern, STEPS)


def test_a_budget_of_the_user_is_told_in_trials_like_the_trial_run():
    told = time_text(20.0, 1.0, 3, Overrides(budget=20.0))
    assert told == "budget 20s: time for 20 trials like the trial run; a verdict needs 18"

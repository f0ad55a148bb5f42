"""Run one part of a block in its folder: a single trial, a trial over several nodes, or interleaved trials."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from envmatrix.block import interrupts, orphans
from envmatrix.block.available_memory import free_memory, memory_kills, usable_memory
from envmatrix.block.block_instructions import CANNOT_WRITE, NO_PIPES, BlockOrder, Part, TrialOrder, Turns
from envmatrix.block.interleave import BrokenOffError, Interleaving, Member, Schedule
from envmatrix.block.process import ENDED_S, Exit, NotStartedError, Order, Overlay, SupervisedProcess
from envmatrix.block.program_folder import link_program_files
from envmatrix.block.program_overlay import make_overlay, remove_folder
from envmatrix.block.result_file_writer import WRITE_ERRORS, JobFiles, StopError
from envmatrix.block.srun import GRACE_S, Nodes, trial_variables
from envmatrix.block.turn_gate import open_gate

#: Seconds within which a failed node ends its whole job.
_NODE_FAILS_S = 5.0


class _Program(SupervisedProcess):
    """A trial's process and its log. If it cannot start, the log gets the reason and it exits with 126 or 127."""

    def __init__(self, order: Order, log: IO[bytes]) -> None:
        super().__init__(order, (subprocess.DEVNULL, log, log))
        self._log = log
        self._exit: Exit | None = None

    def __enter__(self) -> _Program:
        return self

    def exit(self) -> Exit:
        """Wait until it ends, and return its exit."""
        try:
            self._exit = self._exit or self.answer()
        except NotStartedError as error:
            self._log.write(f"{error}\n".encode())
            self._exit = Exit(127 if error.number == errno.ENOENT else 126, 0.0)
        return self._exit


@dataclass
class Outcome:
    """How a trial ended. ``epoch``: its start time; ``up``: the same in seconds since the node started."""

    exit: Exit = field(default_factory=lambda: Exit(-signal.SIGTERM, 0.0))
    epoch: float = field(default_factory=time.time)
    up: float = field(default_factory=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    memory_kills: int = 0
    together: int | None = None

    @property
    def status(self) -> int:
        """The exit status in the form a shell reports it."""
        return 128 - self.exit.code if self.exit.code < 0 else self.exit.code


@dataclass
class PartRun:
    """One run of a part; it is aborted when ``alarm`` becomes readable, because the job was suspended."""

    order: BlockOrder
    part: Part
    files: JobFiles
    job: str
    mark: str
    nodes: Nodes | None
    alarm: socket.socket
    say: Callable[[str], None]
    ended: dict[str, Outcome] = field(default_factory=dict)
    overlays: dict[str, Overlay] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make an empty folder for it."""
        self.files.retry(f"fresh folder of {self.part.name}", self._make_folders)

    def run(self) -> dict[str, Outcome]:
        """Run it and return the outcomes; trials without one were aborted."""
        if self.part.turns is None:
            (trial,) = self.part.trials
            if trial.by_srun:
                self.ended[trial.name] = self._run_by_srun(trial)
            else:
                self.ended[trial.name] = self._run_alone(self._process(trial, trial.limit_s), self._log(trial))
        else:
            with contextlib.suppress(BrokenOffError):
                self._run_interleaved()
        return self.ended

    def _make_folders(self) -> None:
        remove_folder(self.order.folder_of(self.part))
        for trial in self.part.trials:
            work = self._folder(trial) / "work"
            work.mkdir(parents=True)
            if trial.program:
                self._place_program(trial, work, *trial.program)

    def _place_program(self, trial: TrialOrder, work: Path, folder: str, inside: str, metric: str) -> None:
        # srun's processes are not below ours, so that they would not see an overlay.
        overlay = None if trial.by_srun or folder != inside else make_overlay(Path(folder), work, metric)
        if overlay:
            self.overlays[trial.name] = overlay
        else:
            self.say(f"{trial.name} sees links to {folder} in place of the folder itself")
            link_program_files(work, Path(folder), inside, metric)

    def _run_alone(self, order: Order, log: IO[bytes]) -> Outcome:
        """Run a program to its end; end it if the job was suspended, as it then runs again."""
        outcome, kills_before = Outcome(), memory_kills()
        with log, _Program(order, log) as program:
            if self.alarm in interrupts.wait_readable([program, self.alarm], order.limit_s + ENDED_S):
                program.end()
            outcome.exit = program.exit()
        outcome.memory_kills = memory_kills() - kills_before
        return outcome

    def _run_by_srun(self, trial: TrialOrder) -> Outcome:
        """Run a trial's command once on each node; in the log, the output of srun precedes that of the nodes."""
        assert self.nodes is not None
        folder = self._folder(trial)
        words = ("rank", trial.name, self.nodes.meeting_place(self.job) if trial.nodes > 1 else "")
        argv = self.nodes.package_task_argv(trial.nodes, *words, output=folder / "tasks", options=trial.srun)
        own_variables = {**os.environ, orphans.TRIAL_VARIABLE: self.mark}
        order = Order(argv, own_variables, folder / "work", trial.limit_s, grace_s=GRACE_S)
        outcome = self._run_alone(order, (folder / "srun").open("wb"))
        with contextlib.suppress(OSError), (folder / "log").open("wb") as whole:
            for name in ("srun", "tasks"):
                with contextlib.suppress(FileNotFoundError):
                    whole.write((folder / name).read_bytes())
        if not outcome.exit.ok:  # a failed node ends the whole job, and then this trial is not finished
            interrupts.wait_readable([], _NODE_FAILS_S)
        return outcome

    def _run_interleaved(self) -> None:
        """Run trials side by side, or one after the other if there is not enough memory."""
        assert self.part.turns is not None
        needs, free_bytes = self.part.turns.needs, usable_memory(free_memory())
        trials = list(self.part.trials)
        if needs <= free_bytes or len(trials) == 1:
            self._take_turns(trials, self.part.turns)
            return
        need_text = f"{len(trials)} processes at once may need {needs} bytes"
        self.say(f"{need_text}, and there is room for {free_bytes}: one after the other")
        for trial in trials:
            self._take_turns([trial], self.part.turns)

    def _take_turns(self, trials: list[TrialOrder], turns: Turns) -> None:
        seen = memory_kills()
        schedule = Schedule(
            batches=(tuple(trial.name for trial in trials),),
            seed=turns.seed,
            block=turns.block,
            steps=turns.steps,
            limit_s=trials[0].limit_s,
            at_once=turns.at_once or len(os.sched_getaffinity(0)),
        )
        outcomes: dict[str, Outcome] = {}

        def start(name: str, stack: ExitStack) -> Member:
            trial = next(trial for trial in trials if trial.name == name)
            outcomes[name] = outcome = Outcome()
            try:
                gate = stack.enter_context(open_gate(self._folder(trial) / "work"))
            except OSError as error:
                raise StopError(CANNOT_WRITE if error.errno in WRITE_ERRORS else NO_PIPES) from error
            log = stack.enter_context(self._log(trial))
            order = self._process(trial, (4 * len(trials) + 1) * trial.limit_s)
            program = stack.enter_context(_Program(order, log))

            def note_kills() -> None:
                nonlocal seen
                if not program.exit().ok:
                    outcome.memory_kills, seen = memory_kills() - seen, memory_kills()

            return Member(name, program, gate, trial.pauses_itself, trial.apart, note_kills)

        for name, ended in Interleaving(schedule, start, stop=self.alarm).run().items():
            outcomes[name].exit, outcomes[name].together = ended.exit, ended.together
            self.ended[name] = outcomes[name]

    def _folder(self, trial: TrialOrder) -> Path:
        return self.order.folder_of(self.part, trial)

    def _log(self, trial: TrialOrder) -> IO[bytes]:
        file = self._folder(trial) / "log"
        return self.files.retry(f"open the log of {trial.name}", lambda: file.open("wb", buffering=0))

    def _process(self, trial: TrialOrder, limit_s: float) -> Order:
        overlay = self.overlays.get(trial.name)
        folder = Path(trial.program[0]) if trial.program and overlay else self._folder(trial) / "work"
        return Order(trial.argv, trial_variables(trial, self.mark), folder, limit_s, trial.place, overlay=overlay)

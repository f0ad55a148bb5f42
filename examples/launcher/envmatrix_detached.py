"""A launcher for envmatrix: each block is a script that runs detached on this machine, like `nohup sh script &`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen

from envmatrix.block import interrupts
from envmatrix.engines.base import Engine
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Work, refuse_engines_without_commands
from envmatrix.launchers.block_launcher import BlockLauncher, Trials
from envmatrix.launchers.block_start import stop_reason
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.matrix import Design
from envmatrix.plan import Slot
from envmatrix.results import Trial, write_whole
from envmatrix.results.run_model import LauncherOptions
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment


class DetachedKind(LauncherKind):
    """What `--launcher detached` means: the entry point in pyproject.toml names this class."""

    name = "detached"
    takes_turns = True

    def check_and_find_host(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> None:
        """Reject engines that cannot be started by a script. None: the trials run on this machine."""
        refuse_engines_without_commands(self.name, engines)

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher of one run."""
        return DetachedLauncher(experiment, progress)


class DetachedLauncher(BlockLauncher):
    """Starts one block after the other. Blocks continue if envmatrix is killed, and `resume` finds them."""

    name = "detached"
    width = 1

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect what an earlier start of envmatrix left, then run the blocks."""
        for pending in self._known_blocks(work):
            ended = pending.files.has_ended(pending.attempt)  # by Ctrl-C
            self._pick_up(pending, runs=not ended and process_of(pending) is not None)
            yield from self._collect(pending, work)
        yield from self._rounds(blocks, work)

    def interrupted(self) -> None:
        """End the blocks after Ctrl-C or SIGTERM; finished trials are kept."""
        for pending in self._pending_blocks.values():
            with contextlib.suppress(ProcessLookupError):
                if pid := process_of(pending):
                    os.kill(pid, signal.SIGTERM)
            pending.files.note_end(pending.attempt, "interrupted", excused=True)

    def out(self) -> str:
        """Return a line about what still runs after an error such as a full disk."""
        return "a detached process goes on" if any(map(process_of, self._pending_blocks.values())) else ""

    def _step(self, work: Work) -> Trials:
        while self._backlog:
            yield from self._start(self._backlog.pop(0), work)
        time.sleep(0.5)
        for pending in list(self._pending_blocks.values()):
            runs = process_of(pending) is not None  # asked first: what ended before this is in the files
            yield from self._collect(pending, work)
            if pending.slots and not runs:
                self._ended_early(pending)

    def _start(self, pending: PendingBlock, work: Work) -> Trials:
        parts = yield from self._begin(pending, work)
        if not parts:
            return
        script, folder = pending.files.script(pending.attempt), pending.files.path
        lines = self._write_order(pending, parts, '"$node" "$$" 0 alone')
        write_whole(script, "\n".join(["#!/bin/sh", "node=$(uname -n)", *lines, ""]))
        # A batch system has its own command here, such as qsub, and answers with the id of the job.
        with interrupts.held(), (folder / f"detached-{pending.attempt}.log").open("wb") as log:
            job = Popen(["/bin/sh", script], stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True)
            write_whole(folder / f"pid-{pending.attempt}", f"{job.pid}\n")
            self._pending_blocks[pending.block] = pending
        pending.finished = 0
        self._say(f"block {pending.block} runs as process {job.pid}")

    def _ended_early(self, pending: PendingBlock) -> None:
        del self._pending_blocks[pending.block]
        stopped = pending.files.stop_status_node_and_path(pending.attempt)
        reason = stop_reason(stopped[0], stopped[2]) if stopped else "its process is gone"
        self._say(f"block {pending.block}: {len(pending.slots)} trial(s) not done: {reason}")
        pending.files.note_end(pending.attempt, reason, excused=bool(stopped))
        self._send_again(pending, reason)


def process_of(pending: PendingBlock) -> int | None:
    """Return the process id of a block that still runs. Its command line shows that the id was not used again."""
    try:
        pid = int((pending.files.path / f"pid-{pending.attempt}").read_text())
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(pending.files.path) in command_line else None

"""The parts of a long measure: what one machine measured is a part, and the figures are made over all of them.

A folder holds parts 1, 2, ... The last one goes on where that can be: on the machine that began it, with the same
bench/ and the same plan. Else a new one begins, and says why. A part is told by part.json (the machine's kind, when it
began, the digest of bench/). Which machine it was is in a file of its own that is not to be committed, as trials.jsonl:
what the figures take of that is kept beside it, small (`keep`). A part without that file is one of elsewhere, which
nothing is added to.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.plan import Plan
from envmatrix.results import RunFolder, Trial
from envmatrix.results.trial import trial_from_line
from envmatrix.system import bench_options, project
from envmatrix.system.atomic_files import write_whole
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback

#: Kept of each trial beside trials.jsonl, and what is kept of its record: all that figures are made of.
KEPT = "trials.jsonl.gz"
_OF_RECORD = ("schema", "bench", "data", "metrics", "result", "workload")
#: Says which machine a part is measured on; not committed.
_MACHINE = "machine"
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Part:
    """What one machine measured. ``plan`` is what must be the same to go on with it."""

    path: Path
    began: str
    host: str
    bench: str
    plan: Mapping[str, Any]

    @property
    def words(self) -> str:
        """What people are told of it."""
        return f"{self.path.name} ({self.began[:10]}, {self.host}, bench {self.bench})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be asked of all measures that have parts."""
    parser.add_argument("--of-bench", default="", metavar="DIGEST", help="only parts of this bench/ in the figures")


def parts_in(folder: Path, of_bench: str = "") -> list[Part]:
    """Return the parts of a folder in order; ``of_bench``: only those whose bench/ has a digest that begins so."""
    files = sorted(folder.glob("*/part.json"), key=lambda file: _number(file.parent))
    found = [Part(file.parent, **json.loads(file.read_text())) for file in files if _number(file.parent)]
    return [part for part in found if part.bench.startswith(of_bench)]


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else 0


def bench_here() -> str:
    """Return the digest of bench/ as it is now, as it is told."""
    return bench_options.folder_digest(project.bench_folder()).removeprefix("sha256:")[:12]


def host_here() -> str:
    """Return what kind of machine this is, for people."""
    host = this_host()
    memory = "" if host.memory_bytes is None else f", {host.memory_bytes / 2**30:.0f} GiB"
    return f"{len(host.cpus)} CPUs of {host.cpu_model or 'a kind nobody knows'}{memory}"


def machine_here(node: str) -> str:
    """Return what tells this machine (or the ``node`` that it hands jobs to) from others, and names neither."""
    known = _MACHINE_ID.read_text() if _MACHINE_ID.exists() else ""
    return hashlib.sha256(json.dumps([known, this_host().to_json(), node]).encode()).hexdigest()


def part_here(folder: Path, plan: Mapping[str, Any], node: str, progress: ProgressCallback) -> Path:
    """Return the part that goes on here: the last one, or a new one where that cannot be."""
    there, plan = parts_in(folder), json.loads(json.dumps(plan))
    why = _foreign(there[-1], plan, node) if there else ""
    if there and not why:
        return there[-1].path
    path = folder / str(1 + max((_number(part.path) for part in there), default=0))
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / _MACHINE, machine_here(node) + "\n")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    about = {"began": now, "host": host_here(), "bench": bench_here(), "plan": plan}
    write_whole(path / "part.json", json.dumps(about, indent=1) + "\n")
    progress(f"{path} begins" + (f": {there[-1].path.name} is {why}" if why else ""))
    return path


def goes_on(folder: Path, plan: Mapping[str, Any], node: str) -> bool:
    """Say whether the last part goes on here."""
    there = parts_in(folder)
    return bool(there) and not _foreign(there[-1], json.loads(json.dumps(plan)), node)


def _foreign(part: Part, plan: Mapping[str, Any], node: str) -> str:
    """Say why a part does not go on here, '' where it does."""
    file = part.path / _MACHINE
    if not file.exists() or file.read_text().strip() != machine_here(node):
        return "of another machine"
    if part.bench != bench_here():
        return "of another bench/"
    other = sorted(key for key in {*part.plan, *plan} if part.plan.get(key) != plan.get(key))
    return f"of another plan ({', '.join(other)})" if other else ""


def told(parts: Sequence[Part]) -> Iterator[str]:
    """Yield what the figures are made of."""
    yield f"{len(parts)} part{'s' if len(parts) != 1 else ''}: {'; '.join(part.words for part in parts)}"
    of: dict[str, list[str]] = {}
    for part in parts:
        of.setdefault(part.bench, []).append(part.path.name)
    if len(of) > 1:
        each = ", ".join(f"{bench} ({', '.join(names)})" for bench, names in of.items())
        yield f"these parts have different bench/: {each}; --of-bench DIGEST gives the figures of one alone"


def as_json(parts: Sequence[Part]) -> list[Mapping[str, Any]]:
    """Return the parts as they are written into figures."""
    return [{"part": part.path.name, "began": part.began, "host": part.host, "bench": part.bench, "plan": part.plan}
            for part in parts]  # fmt: skip


def chosen_parts(chosen: argparse.Namespace) -> list[Part]:
    """Return the parts that figures are to be made of; InputError where there is none."""
    found = parts_in(chosen.to, chosen.of_bench)
    if not found:
        of = f" of bench {chosen.of_bench}" if chosen.of_bench else ""
        raise InputError(f"no part{of} in {chosen.to}", remedy="measure something first: --minutes, --tries")
    return found


def keep(folder: RunFolder, *, steps: bool = False) -> None:
    """Keep what figures take of a run's trials in a small file, which takes the place of trials.jsonl elsewhere.

    ``steps``: they take the times of the steps of turns, too.
    """
    if not folder.trials_file.exists():
        return
    lines = [_small(trial, steps=steps).line() for trial in folder.trials(folder.load().plan)]
    packed, file = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0), folder.path / KEPT
    if not file.exists() or file.read_bytes() != packed:
        write_whole(file, packed)


def _small(trial: Trial, *, steps: bool) -> Trial:
    document = trial.document and {key: trial.document[key] for key in _OF_RECORD if key in trial.document}
    timing = (trial.document or {}).get("timing")
    turns = timing.get("turns") if isinstance(timing, dict) else None
    if document and turns:
        document = {**document, "timing": {"turns": turns, **({"steps_ns": timing.get("steps_ns")} if steps else {})}}
    return replace(trial, document=document or None)


def trials_of(folder: RunFolder, plan: Plan) -> Iterator[Trial]:
    """Yield the trials of a run, or what is kept of them."""
    file = folder.path / KEPT
    if folder.trials_file.exists() or not file.exists():
        yield from folder.trials(plan)
        return
    try:
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise EnvmatrixError(f"{file} cannot be read: {error}", remedy="restore it from a copy") from error
    for number, line in enumerate(lines, 1):
        yield trial_from_line(line, file, number)


def is_run(folder: Path) -> bool:
    """Say whether a folder holds a run whose figures can be made."""
    return (folder / "run.json").exists()

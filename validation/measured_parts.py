"""Parts of a long measurement: each part comes from one machine, and results are computed over all parts.

A folder contains parts 1, 2, ... The last one is continued on the machine that began it, with the same bench/ and plan.
Otherwise a new part begins, with a message why. A part is described by part.json (kind of machine, start time, digest
of bench/). The machine's identity is in a separate file which, like trials.jsonl, must not be committed. `keep` stores
a small copy of the needed fields next to trials.jsonl. A part without the identity file comes from elsewhere and is
never extended.
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
from envmatrix.system import bench_options, resource_paths
from envmatrix.system.atomic_files import write_whole
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback

#: The small copy of trials.jsonl, and the fields of a record in it: everything that results need.
KEPT = "trials.jsonl.gz"
_OF_RECORD = ("schema", "bench", "data", "metrics", "result", "workload")
#: File with the identity of the part's machine; not committed.
_MACHINE = "machine"
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Part:
    """The results of one machine. ``plan`` has the settings that must be equal to continue the part."""

    path: Path
    began: str
    host: str
    bench: str
    plan: Mapping[str, Any]

    @property
    def words(self) -> str:
        """Return a description of the part for people."""
        return f"{self.path.name} ({self.began[:10]}, {self.host}, bench {self.bench})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all measurements with parts."""
    parser.add_argument("--of-bench", default="", metavar="DIGEST", help="only parts of this bench/ in the figures")


def parts_in(folder: Path, of_bench: str = "") -> list[Part]:
    """Return the parts of a folder in order; ``of_bench`` selects those whose bench/ digest starts with it."""
    files = sorted(folder.glob("*/part.json"), key=lambda file: _number(file.parent))
    found = [Part(file.parent, **json.loads(file.read_text())) for file in files if _number(file.parent)]
    return [part for part in found if part.bench.startswith(of_bench)]


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else 0


def bench_here() -> str:
    """Return the shortened digest of the current bench/."""
    return bench_options.folder_digest(resource_paths.bench_folder()).removeprefix("sha256:")[:12]


def host_here() -> str:
    """Return the kind of this machine, for people."""
    host = this_host()
    memory = "" if host.memory_bytes is None else f", {host.memory_bytes / 2**30:.0f} GiB"
    return f"{len(host.cpus)} CPUs of {host.cpu_model or 'a kind nobody knows'}{memory}"


def machine_here(node: str) -> str:
    """Return a hash that identifies this machine (or the ``node`` of its jobs) without its name."""
    known = _MACHINE_ID.read_text() if _MACHINE_ID.exists() else ""
    return hashlib.sha256(json.dumps([known, this_host().to_json(), node]).encode()).hexdigest()


def part_here(folder: Path, plan: Mapping[str, Any], node: str, progress: ProgressCallback) -> Path:
    """Return the part to continue here: the last one, or a new one if that is not possible."""
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
    """Return whether the last part can be continued here."""
    there = parts_in(folder)
    return bool(there) and not _foreign(there[-1], json.loads(json.dumps(plan)), node)


def _foreign(part: Part, plan: Mapping[str, Any], node: str) -> str:
    """Return why a part cannot be continued here, or ''."""
    file = part.path / _MACHINE
    if not file.exists() or file.read_text().strip() != machine_here(node):
        return "of another machine"
    if part.bench != bench_here():
        return "of another bench/"
    other = sorted(key for key in {*part.plan, *plan} if part.plan.get(key) != plan.get(key))
    return f"of another plan ({', '.join(other)})" if other else ""


def told(parts: Sequence[Part]) -> Iterator[str]:
    """Yield lines that describe the parts behind the results."""
    yield f"{len(parts)} part{'s' if len(parts) != 1 else ''}: {'; '.join(part.words for part in parts)}"
    of: dict[str, list[str]] = {}
    for part in parts:
        of.setdefault(part.bench, []).append(part.path.name)
    if len(of) > 1:
        each = ", ".join(f"{bench} ({', '.join(names)})" for bench, names in of.items())
        yield f"these parts have different bench/: {each}; --of-bench DIGEST gives the figures of one alone"


def as_json(parts: Sequence[Part]) -> list[Mapping[str, Any]]:
    """Return the parts as they are written into results."""
    return [{"part": part.path.name, "began": part.began, "host": part.host, "bench": part.bench, "plan": part.plan}
            for part in parts]  # fmt: skip


def chosen_parts(chosen: argparse.Namespace) -> list[Part]:
    """Return the parts to compute results from; raise InputError if there are none."""
    found = parts_in(chosen.to, chosen.of_bench)
    if not found:
        of = f" of bench {chosen.of_bench}" if chosen.of_bench else ""
        raise InputError(f"no part{of} in {chosen.to}", remedy="measure something first: --minutes, --tries")
    return found


def keep(folder: RunFolder, *, steps: bool = False) -> None:
    """Store the needed fields of a run's trials in a small file that replaces trials.jsonl elsewhere.

    ``steps``: also keep the step times of turns.
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
    """Yield the trials of a run, from trials.jsonl or its small copy."""
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
    """Return whether a folder contains a run to compute results from."""
    return (folder / "run.json").exists()

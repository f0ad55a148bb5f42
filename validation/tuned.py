"""Check claims of `envmatrix tune` with an independent run: `nox -s selfbench -- --tune`.

A try is a search of a design, or of a user's program (`-- python train.py`). After a start's searches, one run checks
their claims and those left unchecked by earlier starts (validation/tuned_check.py). The criteria are in
validation/tuned_verdict.py.

Tries of different designs and programs are together in the part of their machine (validation/measured_parts.py).
`asked.json` has the subject of each, `tries.jsonl` the commits that ran it, with times. Repeating the command continues
unfinished checks and tries, whatever their subject, and then adds further ones. Nothing finished is lost, and nothing
unfinished is judged. `--tries 0` only checks what is left, `--minutes 0` only judges.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from envmatrix.api.tuning import search as tunes
from envmatrix.api.user_program.matrix_for_program import ProgramRequest
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.search.loop import watch_step
from envmatrix.search.study_folder import StudyFolder
from envmatrix.system.atomic_files import append_line, write_whole
from validation import measured_parts as parts
from validation import tuned_verdict
from validation.precision import progress
from validation.tuned_check import (
    Check,
    begin_check,
    checks_in,
    claim_of,
    is_searched,
    number_of,
    run_check,
    tries_in,
    unchecked,
    words_of,
    write_claim,
)

_ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Return this checkout's commit, with + if more than results/ has changed; '' if git cannot tell."""
    changed = ["status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/results"]
    try:
        said = [
            subprocess.run(["git", "-C", str(_ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], changed)
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{said[0]}{'+' if said[1] else ''}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``precision`` and ``verdicts`` lack (they have --to, --design, --engine, --tries)."""
    parser.add_argument("--tune", action="store_true", help="search, and hold the claim against an independent run")
    parser.add_argument("--budget", default="20m", help="with --tune, of a search")
    parser.add_argument("--blocks", type=int, default=40, help="with --tune, of a check")
    parser.add_argument(
        "--named", type=int, help="with --tune, so many named recipes in it, the best by a search (default: all)"
    )
    parser.add_argument("--metric-steps", default="", help="with --tune, of a program: `tune --metric-steps`")
    parser.add_argument("program", nargs="*", help="with --tune, a program of one's own, behind --")


def subject(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the subject of a command's search."""
    if chosen.program:
        steps = {"metric_steps": chosen.metric_steps} if chosen.metric_steps else {}
        return {"program": list(chosen.program), **steps}
    return {"design": chosen.design.split(",")[-1], "engine": chosen.engine, "matrix": chosen.matrix}


def asked_of(what: Mapping[str, Any]) -> ProgramRequest:
    """Return the request for a search of a program."""
    return ProgramRequest(tuple(what["program"]), metric_steps=what.get("metric_steps", ""))


def search(chosen: argparse.Namespace, what: Mapping[str, Any], folder: Path) -> bool:
    """Search, or continue a search; return whether it has finished."""
    if StudyFolder(folder).steps():
        begun = tunes.resume_study(folder, None, progress, what.get("matrix"))
    else:
        request = tunes.SearchRequest(folder.parent, folder.name, progress=progress, budget=chosen.budget)
        begun = (
            tunes.begin_program_search(asked_of(what), request, lambda _: None)
            if "program" in what
            else tunes.begin_design_search(what["design"], request, what["engine"], what["matrix"])
        )
    return not tunes.finish_search(begun, partial(watch_step, quiet=False, tell=progress)).interrupted


def part_of(chosen: argparse.Namespace) -> Path | None:
    """Return the part to continue here, None if nothing is left to do; refuse to mix different settings."""
    way = {"budget": chosen.budget, "blocks": chosen.blocks, "named": chosen.named}
    for part in parts.parts_in(chosen.to):
        if part.plan != way:
            had = ", ".join(f"{key} {part.plan.get(key)}" for key in way)
            raise InputError(f"{chosen.to} holds tries with {had}, which are judged together",
                             remedy="ask for the same, or name another folder: --to DIR")  # fmt: skip
    return parts.part_here(chosen.to, way, "", progress) if chosen.tries or parts.goes_on(chosen.to, way, "") else None


def due(part: Path, count: int) -> list[Path]:
    """Return the folders of the tries to search now: interrupted ones first, then new ones."""
    known = tries_in(part)
    last = max(map(number_of, known), default=0)
    further = [part / f"try-{number:02d}" for number in range(last + 1, last + 1 + count)]
    return [*(path for path in known if not is_searched(path)), *further][:count]


def note(part: Path, name: str, does: str) -> None:
    """Record the code version for this step of a try."""
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    append_line(part / "tries.jsonl", json.dumps({"try": name, "does": does, "at": at, "commit": commit()}))


def subjects_of(part: Path) -> dict[str, Any]:
    """Return the subject of each try in a part."""
    file = part / "asked.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def carry_out(chosen: argparse.Namespace, part: Path) -> bool:
    """Search and check what is due; return whether it was not interrupted."""
    if not checked(part, [check for check in checks_in(part) if not check.is_over]):
        return False
    for folder in due(part, chosen.tries):
        known = subjects_of(part)
        if folder.name not in known:
            known[folder.name] = subject(chosen)
            write_whole(part / "asked.json", json.dumps(known, indent=1) + "\n")
        progress(f"{folder.name}, of {words_of(known[folder.name])}")
        note(part, folder.name, "search")
        if not search(chosen, known[folder.name], folder):
            return False
    claim_all(part, chosen.named)
    return all(checked(part, [begin_check(part, those, chosen.blocks)]) for those in unchecked(part))


def claim_all(part: Path, most: int | None) -> None:
    """Write the claim of each finished search."""
    known = subjects_of(part)
    for folder in tries_in(part):
        if is_searched(folder) and not claim_of(folder):
            write_claim(folder, known.get(folder.name, {}), most)


def checked(part: Path, checks: Sequence[Check]) -> bool:
    """Run or continue checks; return whether they were not interrupted."""
    for check in checks:
        for name in check.of:
            note(part, name, check.path.name)
        if not run_check(check, part, progress):
            return False
    return True


def measure(chosen: argparse.Namespace) -> int:
    """Make further tries, then judge all finished ones in the folder."""
    status = 0
    try:
        if chosen.minutes > 0 and (part := part_of(chosen)):
            status = 0 if carry_out(chosen, part) else 130
    except KeyboardInterrupt:
        status = 130
    except EnvmatrixError as error:
        progress(
            f"{error}\nwhen that is mended, the same command goes on (a try that can never end: remove its folder)"
        )
        status = error.exit_code
    if status == 130:
        progress("interrupted: the same command goes on")
    return judge(chosen) or status


def judge(chosen: argparse.Namespace) -> int:
    """Write tune.json for all finished tries of all parts, and print them; return 1 if the criterion is missed."""
    there, whole = parts.parts_in(chosen.to, chosen.of_bench), {}
    for part in there:
        commits, known = commits_of(part.path), subjects_of(part.path)
        for check in checks_in(part.path):
            parts.keep(check.run)
        for folder in tries_in(part.path):
            one, name = tuned_verdict.verdict_of(part.path, folder), f"{part.path.name}/{folder.name}"
            if one:
                whole[name] = {**one, "commits": commits.get(folder.name, [])}
            else:
                left = "not checked" if is_searched(folder) else "not over"
                progress(f"{left}: {name} ({words_of(known.get(folder.name, {}))})")
    if not whole:
        progress(f"no try in {chosen.to} is over: give it some --tries")
        return 1
    total = tuned_verdict.summary_of(whole)
    document = {"schema": 2, **total, "parts": parts.as_json(there), "each": whole}
    write_whole(chosen.to / "tune.json", json.dumps(document, indent=1) + "\n")
    print("\n".join([*parts.told(there), *tuned_verdict.lines_of(whole, total)]))
    return 1 if total["verdict"] == "MISSED" else 0


def commits_of(folder: Path) -> dict[str, list[str]]:
    """Return the commits that ran each try; truncated lines are skipped."""
    file = folder / "tries.jsonl"
    found: dict[str, dict[str, None]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found.setdefault(one["try"], {})[one["commit"]] = None
    return {name: list(commits) for name, commits in found.items()}

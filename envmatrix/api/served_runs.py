"""What ``envmatrix mcp`` tells of the runs in one folder: each method is a tool, and its docstring is what agents read.

Runs are found by name only, so that a client cannot reach anything outside the folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from envmatrix.api import answers
from envmatrix.api.background_bench import BackgroundBench
from envmatrix.api.places import find_run
from envmatrix.api.runs import load
from envmatrix.errors import InputError, suggestion
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.results.elapsed import trials_elapsed_s
from envmatrix.stats.attribution.explanation import to_json

#: The most characters of JSON in an answer, some 20,000 tokens: clients refuse or cut longer ones.
MOST_CHARACTERS = 60_000
#: The most runs that are listed.
MOST_RUNS = 500


class ServedRuns:
    """The runs in ``results``, and the one that ``bench`` started (None: nothing can be started)."""

    def __init__(self, results: Path, bench: BackgroundBench | None = None) -> None:
        self.results, self.bench = results.resolve(), bench

    def list_runs(self) -> dict[str, object]:
        """List the names of runs, newest first, and of searches (`envmatrix tune`)."""
        runs, searches = self._names("run.json"), self._names("study.json")
        return {"runs": runs[:MOST_RUNS], "searches": searches[:MOST_RUNS], "count": len(runs)}

    def run_status(self, run: str | None = None) -> dict[str, object]:
        """Say whether a run (default: the newest) is being measured, and how far it is. Tells no results.

        Use this to wait for a run: to read its report before its end is an interim analysis, which is recorded.
        """
        started = self.bench.state() if self.bench and run and run == self.bench.name else {}
        if started and run not in self._names("run.json"):
            return started
        folder = find_run(self._path(run), self.results)
        plan = folder.load().plan
        trials = list(folder.facts(plan))
        document = {
            "run": folder.path.name,
            "running": folder.is_written() or bool(started.get("running")),
            "trials": dict(Counter(trial.outcome for trial in trials)),
            "blocks": len({trial.block for trial in trials}),
            "max_blocks": plan.max_blocks,
            "elapsed_s": round(trials_elapsed_s(trials), 1),
            "budget_s": plan.budget_s,
            "has_report": (folder.path / "summary.json").is_file(),
        }
        return {**started, **document}

    def report(self, run: str | None = None, part: str | None = None, first: int = 0) -> dict[str, object]:
        """Return the summary of a run (default: the newest): the best environment, each effect, warnings.

        Parts that are too long are named in `left_out`, with their length. Ask for each with `part`; of a long list you
        get the items from number `first` on, and in `next` the number to continue with.
        """
        document = summary_to_json(load(self._path(run), results=self.results).summary)
        if part is None:
            return _without_long_parts(document)
        if part not in document:
            raise InputError(f"the report has no part {part!r}", remedy=suggestion(part, document))
        value = document[part]
        if not isinstance(value, list):
            return _checked({part: value}, "it is in summary.json, in the folder of the run")
        items = _page(value, max(0, first))
        end = max(0, first) + len(items)
        return {part: items, "count": len(value), "next": end if items and end < len(value) else None}

    def explain(self, run: str | None = None, environment: str | None = None) -> dict[str, object]:
        """Say why environments of a run (default: the newest) are faster or slower, in parts that add up."""
        explanations, unexplained = answers.explain(self._path(run), environment, results=self.results)
        document = {"why": [to_json(explanation) for explanation in explanations], "not_explained": unexplained}
        return _checked(document, "name one environment")

    def compare(
        self,
        old: str,
        new: str | None = None,
        environments: list[str] | None = None,
        allowed: float | str = 0.0,
        anyway: bool = False,
    ) -> dict[str, object]:
        """Compare two runs, or two `environments` (old, new) of one run, and say whether the new one is slower.

        A ratio above 1 is faster. `allowed` is the accepted slow-down, such as '3%'. With `anyway`, runs need not be
        comparable. `exit_code`: 7 other work, 5 slower, otherwise 0.
        """
        names = None if new is None else self._path(new)
        compared = answers.compare(
            self._path(old), names, environments=environments, allowed=allowed, anyway=anyway, results=self.results
        )
        return _checked(compared.to_json(), "name the environments")

    def _names(self, kind: str) -> list[str]:
        """Return the names of the folders with this file, newest first; not of links, which may lead elsewhere."""
        files = [file for file in self.results.glob(f"*/{kind}") if not file.parent.is_symlink()]
        return [file.parent.name for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]

    def _path(self, run: str | None) -> Path:
        """Return the folder of a run, or of a search, by its name; of the newest run for None."""
        runs = self._names("run.json")
        if run is None:
            if not runs:
                raise InputError(f"no runs in {self.results}", remedy="create one: `envmatrix bench`")
            return self.results / runs[0]
        if run not in runs and run not in self._names("study.json"):
            raise InputError(f"no run {run!r} in {self.results}", remedy=suggestion(run, runs))
        return self.results / run


def _length(value: object) -> int:
    return len(json.dumps(value))


def _checked(document: Mapping[str, object], remedy: str) -> dict[str, object]:
    """Return a document; raise an InputError if it is too long."""
    if (length := _length(document)) > MOST_CHARACTERS:
        raise InputError(f"the answer has {length:,} characters, and at most {MOST_CHARACTERS:,} fit", remedy=remedy)
    return dict(document)


def _without_long_parts(document: dict[str, object]) -> dict[str, object]:
    """Return a document in its order without the longest parts, so that it fits; ``left_out`` has their lengths."""
    lengths = {name: _length(value) for name, value in document.items()}
    kept, total = set[str](), 0
    for name in sorted(lengths, key=lengths.__getitem__):
        total += lengths[name]
        if total <= MOST_CHARACTERS:
            kept.add(name)
    left_out = {name: length for name, length in lengths.items() if name not in kept}
    return {**{name: value for name, value in document.items() if name in kept}, "left_out": left_out}


def _page(items: list[object], first: int) -> list[object]:
    """Return the items from ``first`` on that fit, at least one."""
    page, total = list[object](), 0
    for item in items[first:]:
        total += _length(item)
        if page and total > MOST_CHARACTERS:
            break
        page.append(item)
    return page

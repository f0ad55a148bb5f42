"""Write a very long run for measuring reports: `python -m validation.long_run results/reference-default 100000 FOLDER`.

Its lines are those of a committed run, with the values changed that differ between any two processes. It is not data.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from envmatrix.plan import Slot
from envmatrix.results import RunFolder
from envmatrix.system.regular_files import read_lines

_RATES = ("samples_per_s", "training_s", "data_wait_s", "step_median_s", "user_s", "system_s", "run_delay_s")
_COUNTS = ("minor_faults", "involuntary_switches", "peak_rss_bytes")


def varied(line: dict[str, Any], slot: Slot, started: float, chance: random.Random) -> str:
    """Return a line with the place of ``slot``, and values of a process of its own."""
    metrics, system = line["record"]["metrics"], line["record"]["evidence"]["system"]
    metrics.update({name: metrics[name] * chance.gauss(1, 0.001) for name in _RATES if metrics.get(name)})
    metrics.update({name: metrics[name] + chance.randrange(3) for name in _COUNTS if metrics.get(name)})
    system.update(uptime_s=started % 1e6, load_1m=round(chance.random(), 2), mhz=2445 + chance.random())
    line.update(trial=slot.trial, block=slot.block, position=slot.position, started=started)
    return json.dumps(line, separators=(",", ":"))


def write_long_run(source: Path, trials: int, target: Path) -> None:
    """Write ``target`` with as many whole blocks of the run ``source`` as make ``trials``."""
    run = json.loads((source / "run.json").read_text())
    blocks = trials // len(run["arms"])
    design = {**run["design"], "max_blocks": blocks, "budget": 1e9}
    target.mkdir(parents=True)
    (target / "run.json").write_text(json.dumps({**run, "name": target.name, "design": design}))
    by_arm: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in map(json.loads, read_lines(source / "trials.jsonl")):
        if line["outcome"] == "ok":
            by_arm[line["environment"], line["workload"], line["engine"]].append(line)
    chance, started = random.Random(1), 1.79e9
    with (target / "trials.jsonl").open("w") as file:
        for block in RunFolder(target).load().plan.blocks():
            for slot in block:
                lines = by_arm[slot.arm.environment, slot.arm.workload, slot.arm.engine]
                file.write(varied(chance.choice(lines), slot, started, chance) + "\n")
                started += 3.1


if __name__ == "__main__":
    write_long_run(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

"""Random kills at random moments: `nox -s storm -- --kills 1000`. Prints what was lost, doubled or left running."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from envmatrix import project as places
from tests.engines.conftest import write_wheel
from tests.faults.conftest import _SHARED, Toy

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: Seconds in which all that a killed tool had started must have ended.
_ENDED_S = 30.0


def new_toy(root: Path, number: int) -> Toy:
    """Return a project, with the cache that all projects of a storm share."""
    return Toy(root / f"toy-{number}", root / "cache", {
        "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels"),
    })  # fmt: skip


def still_running(toy: Toy) -> int:
    deadline = time.monotonic() + _ENDED_S
    while (left := toy.left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)


def storm(root: Path, engine: str, kills: int, chance: random.Random) -> Counter[str]:
    """Kill and resume runs on one engine, and count what went wrong."""
    found: Counter[str] = Counter()
    number = 0
    while found["kills"] < kills:
        number += 1
        toy = new_toy(root / engine, number)
        process = toy.start("bench", "toy", "--engine", engine, "--quiet")
        while True:
            before = [trial["trial"] for trial in toy.trials()]
            time.sleep(chance.uniform(0, 12))
            if process.poll() is not None or toy.newest is None:
                process.communicate()
            else:
                process.send_signal(chance.choice(SIGNALS))
                process.communicate()
                found["kills"] += 1
                found["left running"] += still_running(toy)
            names = [trial["trial"] for trial in toy.trials()]
            found["lines lost"] += len(set(before) - set(names))
            found["lines doubled"] += len(names) - len(set(names))
            if toy.newest and names == toy.planned():
                break
            if found["kills"] >= kills:
                done = toy.run("resume", "--quiet")
                found["not completed"] += done.returncode != 0 or [t["trial"] for t in toy.trials()] != toy.planned()
                break
            process = toy.start(*(["resume"] if toy.newest else ["bench", "toy", "--engine", engine]), "--quiet")
        found["trials not ok"] += sum(trial["outcome"] != "ok" for trial in toy.trials())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="on each engine")
    parser.add_argument("--engines", default="local,docker,apptainer")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    columns = ("kills", "left running", "lines lost", "lines doubled", "trials not ok", "not completed")
    print(f"| engine | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for engine in asked.engines.split(","):
        root = Path(tempfile.mkdtemp(prefix="storm-"))
        for name in ("wheels", f"{engine}/cache"):
            (root / name).mkdir(parents=True)
        for name in _SHARED:
            (root / engine / "cache" / name).symlink_to(places.cache_folder() / name)
        (root / engine / "wheels").symlink_to(root / "wheels")
        write_wheel(root / "wheels", "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
        found = storm(root, engine, asked.kills, random.Random(asked.seed))
        print(f"| {engine} | {' | '.join(str(found[column]) for column in columns)} |", flush=True)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()

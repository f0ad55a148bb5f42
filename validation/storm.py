"""Random kills at random moments: `nox -s storm -- --kills 1000`. Prints what was lost, doubled or left running.

Each tool is a fork of this process, which has imported everything: kills hit the tool's work, and many fit in.
With `--launcher slurm`, jobs go on when their tool is killed; some kills are of a job's block runner instead.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import envmatrix.api.run_results
import envmatrix.api.runs
import envmatrix.cli.bench
import envmatrix.cli.resume  # noqa: F401 - imported once for all tools
from envmatrix.__main__ import main as envmatrix_main
from envmatrix.build.cache import MEMORY_FOLDER, json_digest
from envmatrix.engines.catalog import find_engine
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_images import RUN_LABEL
from envmatrix.system import resource_paths as places
from tests.cluster.slurm_daemons import Cluster
from tests.cluster.test_every_launcher import runners
from tests.engines.conftest import write_wheel
from tests.faults.conftest import _SHARED, Toy

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: Schedule -> toy design; when interleaved, all processes but one are stopped.
DESIGNS = {"sequential": "toy", "turns": "turns"}
COLUMNS = (
    "kills", "of jobs", "at work", "stopped", "left running", "lines lost", "lines doubled", "trials not ok",
    "not completed", "left behind",
)  # fmt: skip
#: Seconds for the end of everything that a killed tool started, and for a tool that was asked to end.
_ENDED_S, _TOOL_S = 30.0, 300.0
_fork = multiprocessing.get_context("fork")


def new_toy(root: Path, name: str, **variables: str) -> Toy:
    """Return a project; all projects of a storm share one cache and one folder of temporary files."""
    return Toy(root / f"toy-{name}", root / "cache", {
        "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels"),
        "TMPDIR": str(root / "tmp"), **variables,
    })  # fmt: skip


def _be_tool(toy: Toy, arguments: tuple[str, ...]) -> None:
    """Become the tool: set signals, variables, folder and output, and run the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(toy.folder)
    os.environ.update(toy.variables)
    with (toy.folder / "said").open("ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.exit(envmatrix_main(arguments))


def start(toy: Toy, *arguments: str) -> multiprocessing.process.BaseProcess:
    tool = _fork.Process(target=_be_tool, args=(toy, arguments))
    tool.start()
    return tool


def stopped(processes: Iterable[int]) -> bool:
    """Return whether a process is stopped, by a signal or by its control group's freezer."""
    for pid in processes:
        with contextlib.suppress(OSError):
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "TD":
                return True
    return False


def still_running(toy: Toy) -> int:
    deadline = time.monotonic() + _ENDED_S
    while (left := toy.left()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(left)


def left_behind(root: Path, engine: str, run: str) -> list[str]:
    """Return what a complete run left: containers, control groups, and files outside of its results."""
    found: list[object] = [*root.glob("tmp/*"), *root.glob("cache/scratch/*"), *root.glob("cache/work/*/*")]
    found += Path("/sys/fs/cgroup").glob(f"**/envmatrix-{run}.*")
    found += [path for path in Path("/tmp").glob("bench-*.*") if not Path("/proc", path.name.split(".")[1]).exists()]
    cache = json_digest(str((root / "cache").resolve()))[:12]
    found += MEMORY_FOLDER.glob(f"envmatrix-{os.getuid()}-{cache}.*")
    maker = find_engine(engine)
    if isinstance(maker, DockerEngine):
        with maker.client("looking for containers") as client:
            found += client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={run}"})
    return [str(one) for one in found]


class Storm:
    """Kills and resumes runs on one engine with one schedule, and counts errors."""

    def __init__(
        self, root: Path, engine: str, schedule: str, chance: random.Random, cluster: Cluster | None = None
    ) -> None:
        self.root, self.engine, self.schedule, self.chance = root, engine, schedule, chance
        self.cluster = cluster
        self.lost_job: Toy | None = None
        self.before = set(left_behind(root, engine, "of nobody"))
        self.found: Counter[str] = Counter()
        #: Longest time (s) before a kill, such that two of three tools write a line.
        self.span = 0.0

    def whole(self) -> None:
        """Do two complete runs: one builds the image, one gives the duration. Without them no storm can begin."""
        for number in range(2):
            toy, began = self._toy(number), time.monotonic()
            self._complete(toy)
            assert not self.found["not completed"], (toy.folder / "said").read_text()
            self.span = (time.monotonic() - began) / 4

    def kill(self, kills: int, minutes: float) -> None:
        end = time.monotonic() + 60 * minutes
        number = 1
        while self.found["kills"] < kills and time.monotonic() < end:
            number += 1
            toy = self._toy(number)
            while self.found["kills"] < kills and time.monotonic() < end and self._killed(toy):
                pass
            self._complete(toy)
            self._check(toy)
            shutil.rmtree(toy.folder)

    def _check(self, toy: Toy) -> None:
        """Count what a complete run did wrong or left, and print it to stderr."""
        wrong = [trial["reason"] for trial in toy.trials() if trial["outcome"] != "ok"]
        self.found["trials not ok"] += len(wrong)
        self.found["left running"] += still_running(toy)
        left = set(left_behind(self.root, self.engine, toy.newest.name if toy.newest else "")) - self.before
        left |= {f"job {job}" for job in (self.cluster.jobs() if self.cluster else ())}
        self.before |= left
        self.found["left behind"] += len(left)
        for text in [*wrong, *left]:
            print(f"{self.engine} {self.schedule}: {text}", file=sys.stderr, flush=True)

    def _toy(self, number: int) -> Toy:
        more = {"SLURM_CONF": str(self.cluster.conf)} if self.cluster else {}
        return new_toy(self.root, f"{self.schedule}-{number}", **more)

    def _go_on(self, toy: Toy) -> multiprocessing.process.BaseProcess:
        new = ["bench", DESIGNS[self.schedule], "--engine", self.engine]
        new += ["--launcher", "slurm"] if self.cluster else []
        return start(toy, *(["resume"] if toy.newest else new), "--quiet")

    def _kept(self, toy: Toy) -> list[str]:
        """Return the trials on disk that no resume repeats; interleaved ones count in whole blocks."""
        names = [trial["trial"] for trial in toy.trials()]
        together = len(toy.block()) if names and self.schedule == "turns" else 1
        return names[: len(names) - len(names) % together]

    def _killed(self, toy: Toy) -> bool:
        """Start or resume a run and kill it; return False if it ended first."""
        before = self._kept(toy)
        tool = self._go_on(toy)
        tool.join(self.chance.uniform(0, self.span))
        alive = tool.exitcode is None
        if alive:
            self.found["kills"] += 1
            self.found["at work"] += bool(there := toy.left())
            self.found["stopped"] += stopped(there)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._victim(toy) or tool.pid or 0, self.chance.choice(SIGNALS))
        tool.join(_TOOL_S)
        assert tool.exitcode is not None, f"process {tool.pid} does not end: {toy.folder}"
        if not self.cluster:  # otherwise its jobs go on
            self.found["left running"] += still_running(toy)
        names = [trial["trial"] for trial in toy.trials()]
        self.found["lines lost"] += names[: len(before)] != before
        self.found["lines doubled"] += len(names) - len(set(names))
        self.span *= 1.1 if alive and self._kept(toy) == before else 0.95
        return alive

    def _victim(self, toy: Toy) -> int:
        """Return a block runner to kill instead of the tool, or 0; once a run: a trial whose job dies twice failed."""
        jobs = runners(toy) if self.cluster and toy is not self.lost_job else []
        if not jobs or self.chance.random() < 0.5:
            return 0
        self.lost_job = toy
        self.found["of jobs"] += 1
        return self.chance.choice(jobs)

    def _done(self, toy: Toy) -> bool:
        return toy.newest is not None and [trial["trial"] for trial in toy.trials()] == toy.planned()

    def _complete(self, toy: Toy) -> None:
        tool = self._go_on(toy)
        tool.join(_TOOL_S)
        self.found["not completed"] += (failed := tool.exitcode != 0 or not self._done(toy))
        if failed:
            print((toy.folder / "said").read_text(), file=sys.stderr, flush=True)


def prepared(engine: str) -> Path:
    """Return a new folder with the toy's wheel and a cache with the user's downloads."""
    root = Path(tempfile.mkdtemp(prefix="storm-")) / engine
    (root / "cache").mkdir(parents=True)
    (root / "wheels").mkdir()
    (root / "tmp").mkdir()
    for name in _SHARED:
        (places.cache_folder() / name).mkdir(parents=True, exist_ok=True)
        (root / "cache" / name).symlink_to(places.cache_folder() / name)
    write_wheel(root / "wheels", "tinypkg", "1.0", {"tinypkg/__init__.py": b"VERSION = '1.0'\n"})
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="on each engine in each schedule")
    parser.add_argument("--minutes", type=float, default=600, help="end after that time of each, kills or not")
    parser.add_argument("--engines", default="local,docker,apptainer")
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local", help="slurm: of the tests")
    parser.add_argument("--schedules", default=",".join(DESIGNS))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(f"| engine | schedule | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}", flush=True)
    cluster = Cluster() if asked.launcher == "slurm" else None
    try:
        if cluster:
            cluster.start()
        for engine in asked.engines.split(","):
            root = prepared(engine)
            for schedule in asked.schedules.split(","):
                storm = Storm(root, engine, schedule, random.Random(asked.seed), cluster)
                storm.whole()
                storm.kill(asked.kills, asked.minutes)
                found = " | ".join(str(storm.found[column]) for column in COLUMNS)
                print(f"| {engine}{', slurm' if cluster else ''} | {schedule} | {found} |", flush=True)
            shutil.rmtree(root.parent, ignore_errors=True)
    finally:
        if cluster:
            cluster.close()


if __name__ == "__main__":
    main()

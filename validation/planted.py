"""Planted breaks: do the tests notice small faults that would hurt a user? `python -m validation.planted`

Each entry of planted.yaml replaces a text of one file. It is applied to a copy of the tracked files, where one of the
named tests must fail. First, all of them must pass there without a break. Prints a table in Markdown; exit code 1 if a
break survived or no longer applies. Two breaks need torch: see BENCH_SITE_PACKAGES in tests/conftest.py.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

from envmatrix.cli.argument_parser import whole_number
from envmatrix.system.process import Finished, run

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".yaml")
#: Seconds for the tests of one break, and for all tests without a break.
_LIMIT_S, _ALL_S = 300.0, 3600.0
_TESTS_FAILED = 1  # pytest's exit status: https://docs.pytest.org/en/stable/reference/exit-codes.html
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_WHERE = "import pathlib, bench, envmatrix; print(*(pathlib.Path(m.__file__).parents[1] for m in (bench, envmatrix)))"


@dataclass(frozen=True)
class Break:
    """A fault: ``find``, once in ``file``, becomes ``replace``; one of ``tests`` must fail. ``why`` is its harm."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    why: str

    def broken(self, text: str) -> str:
        """Return the text of its file with the break. Raises ValueError if the place is not found once."""
        if text.count(self.find) != 1 or self.find == self.replace:
            msg = f"{self.name}: {self.find!r} must occur once in {self.file}, not {text.count(self.find)} times"
            raise ValueError(msg)
        return text.replace(self.find, self.replace)


def read_breaks(names: Sequence[str] = ()) -> list[Break]:
    """Return the breaks of planted.yaml (of ``names``, if any)."""
    entries = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    if unknown := set(names).difference(entries):
        sys.exit(f"no such break: {', '.join(sorted(unknown))}")
    return [Break(name, **{**entries[name], "tests": tuple(entries[name]["tests"])}) for name in names or entries]


def copy_checkout(folder: Path) -> Path:
    """Copy the tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def run_python(folder: Path, arguments: Sequence[str], limit_s: float) -> Finished:
    """Run Python in a copy, whose modules come first; everything that it starts ends with it."""
    variables = {**os.environ, "PYTHONPATH": str(folder)}
    return run([sys.executable, *arguments], limit_s=limit_s, env=variables, cwd=folder)


def run_tests(folder: Path, tests: Sequence[str], limit_s: float) -> Finished:
    """Run tests in a copy until one fails."""
    return run_python(folder, ["-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests], limit_s)


def check_copy(folder: Path, tests: Sequence[str]) -> None:
    """Exit unless Python imports the copy, and the tests pass in it without a break."""
    where = run_python(folder, ["-c", _WHERE], _LIMIT_S)
    if where.stdout.split() != [str(folder)] * 2:
        sys.exit(f"not the copy was imported: {where.last_words()}")
    if not (passed := run_tests(folder, tests, _ALL_S)).exit.ok:
        sys.exit(f"the tests do not pass without a break:\n{passed.stdout}{passed.stderr}")


def catch(one: Break, folder: Path) -> str:
    """Plant a break in a copy and remove it again; return the test that caught it, or why none did."""
    file = folder / one.file
    try:
        file.write_text(one.broken(file.read_text(encoding="utf-8")), encoding="utf-8")
        found = run_tests(folder, one.tests, _LIMIT_S)
    finally:
        shutil.copy2(ROOT / one.file, file)  # with the old time, which its bytecode in the cache does not have
    failed = _FAILED.search(found.stdout)
    if found.exit.code == _TESTS_FAILED and failed and not found.exit.timed_out:
        return failed[1].partition("[")[0]
    return f"SURVIVED (pytest {found.exit}: {found.last_words(1)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these breaks")
    parser.add_argument("--jobs", type=whole_number(1), default=1, metavar="N", help="copies to work in (default: 1)")
    options = parser.parse_args()
    breaks = read_breaks(options.names)
    try:
        for one in breaks:
            one.broken((ROOT / one.file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    folders: SimpleQueue[Path] = SimpleQueue()

    def catch_in_free_copy(one: Break) -> str:
        folder = folders.get()
        try:
            return catch(one, folder)
        finally:
            folders.put(folder)

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            folders.put(copy_checkout(Path(temporary).resolve() / str(number)))
        check_copy(Path(temporary).resolve() / "0", sorted({test for one in breaks for test in one.tests}))
        print("| break | file | caught by |\n|---|---|---|")
        survived = 0
        for one, caught_by in zip(breaks, pool.map(catch_in_free_copy, breaks), strict=True):
            survived += caught_by.startswith("SURVIVED")
            print(f"| {one.name}: {one.why} | {one.file} | {caught_by} |", flush=True)
    print(f"\n{len(breaks) - survived} of {len(breaks)} breaks are caught.")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())

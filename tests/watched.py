"""``bench command`` that counts its checks of processes in a file, for programs that work until they were seen.

python tests/watched.py COUNT_FILE command ...
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.command_line import main
from bench.evidence import process_tree_watch

_WORK = """import os, time
def looks(): return int(open({file!r}).read())
before, most = looks(), {file!r} + ".most"
cpu_s = max({cpu_s}, os.path.exists(most) and float(open(most).read()))  # none works much less than one before it
while time.process_time() < cpu_s or looks() < before + 2: sum(range(10_000))
with open(most, "w") as written: written.write(str(time.process_time()))
"""


def work(file: Path, cpu_s: float = 0.2) -> str:
    """Return Python code, safe in shell quotes, that works for ``cpu_s`` and until a whole check has seen it."""
    source = file.with_suffix(".py")
    source.write_text(_WORK.format(file=str(file), cpu_s=cpu_s))
    return f'exec(open("{source}").read())'


def counted(file: str) -> None:
    looked, looks = process_tree_watch.Watch._look, 0

    def look(watch: process_tree_watch.Watch, last: bool = False) -> None:
        nonlocal looks
        looked(watch, last)
        looks += 1
        Path(f"{file}.new").write_text(f"{looks}\n")
        Path(f"{file}.new").replace(file)

    Path(file).write_text("0\n")
    process_tree_watch.Watch._look = look
    process_tree_watch._SHARE = 1  # check as often as possible


if __name__ == "__main__":
    counted(sys.argv.pop(1))
    sys.exit(main(sys.argv[1:]))

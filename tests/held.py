"""A program whose trials a test holds: what is done in the middle of one then never comes too late.

``python wait.py FOLDER SECONDS``: each start takes the next number (``FOLDER/start-1``, ...); those from the number in
``FOLDER/hold`` on wait until that file is gone. Then the program takes its seconds.
"""

from __future__ import annotations

from pathlib import Path

PROGRAM = """
import os, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
os.makedirs(folder, exist_ok=True)
number = 0
while True:
    number += 1
    try:
        os.close(os.open(f"{folder}/start-{number}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        pass
while True:
    try:
        with open(f"{folder}/hold") as file:
            held = number >= int(file.read())
    except FileNotFoundError:
        held = False
    if not held:
        break
    time.sleep(0.02)
time.sleep(seconds)
"""


class Held:
    """The test's side of such a program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, first: int) -> None:
        """Let all starts from this one on wait; to be said before any of them can come."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "hold").write_text(str(first))

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def starts(self) -> int:
        """Return how many have started."""
        return len(list(self.folder.glob("start-*")))

"""A program whose trials a test can hold, so that actions in the middle of a trial never come too late.

``python wait.py FOLDER SECONDS``: each start takes the next number (``FOLDER/start-1``, ...). From the number in
``FOLDER/hold`` on, starts wait until that file is gone. Then the program runs for SECONDS.
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
    """Control of such a program from a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, first: int) -> None:
        """Make all starts from this one on wait; call this before any of them can happen."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "hold").write_text(str(first))

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def starts(self) -> int:
        """Return the number of starts."""
        return len(list(self.folder.glob("start-*")))

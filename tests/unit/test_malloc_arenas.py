"""The number of glibc's heaps is verified in a process with threads that allocate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, threading
together = threading.Barrier(4)
def work():
    blocks = [bytearray(2000) for _ in range(100)]
    together.wait(60)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
together.wait(60)
from bench.evidence import malloc
print(json.dumps(malloc.collect()))
"""


@pytest.mark.parametrize(("variables", "most"), [({"MALLOC_ARENA_MAX": "1"}, 1), ({"MALLOC_ARENA_MAX": "3"}, 3)])
def test_threads_share_as_many_heaps_as_were_asked_for(variables, most):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], env={**os.environ, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen = json.loads(done.stdout)
    if seen["library"] != "libc":
        pytest.skip(f"malloc here is {seen['library']}'s")
    assert seen["arenas"] == most

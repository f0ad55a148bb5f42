"""A run with other allocators is repeated on a machine without a network, from the libraries in its pack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.cache import file_digest
from envmatrix.system.resource_paths import cache_folder
from tests import no_network

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]
#: No committed lock has the library of ``mine``: its lock is made in the cache.
MATRIX = f"""
version: 2
include: envmatrix:malloc
factors:
  python: {{mine: {{interpreter: "{sys.executable}"}}}}
  malloc: {{mine: {{apt: libjemalloc2, preload: libjemalloc.so.2, claims: {{malloc: libjemalloc}}}}}}
environments: {{baseline: {{}}, mine: {{malloc: mine}}}}
workloads: {{short: {{command: [python, -c, "print(sum(range(99999)))"], metric: {{wall: true}}}}}}
designs: {{default: {{environments: [tcmalloc, mine], workloads: short, max_blocks: 1, schedule: sequential}}}}
"""


def allocators(folder: Path, cache: Path) -> "dict[str, Path]":
    """Return the allocator's file in each environment of a run with this cache, after checking its trials."""
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert {trial["outcome"] for trial in trials} == {"ok"}, [trial["reason"] for trial in trials]
    paths = {trial["environment"]: trial["record"]["evidence"]["malloc"]["path"] for trial in trials}
    return {name: Path(path.replace("{cache}", str(cache))) for name, path in paths.items()}


def test_allocators_are_verified_from_the_libraries_in_the_pack(tmp_path):
    here, there, cache = tmp_path / "here", tmp_path / "there", tmp_path / "cache"
    for folder in (here, there):
        folder.mkdir()
    (here / "matrix.yaml").write_text(MATRIX)
    for words in (("bench", "--name", "own"), ("pack", "own", "--libraries", "--output", "run.tar.gz")):
        argv = [sys.executable, "-m", "envmatrix", *words]
        done = subprocess.run(argv, cwd=here, env=dict(os.environ), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    first = allocators(here / "results" / "own", cache_folder())
    no_network.reproduce(here / "run.tar.gz", there, cache)
    (run,) = (file.parent for file in there.glob("results/*/reproduction.json"))
    second = allocators(run, cache)
    assert second["baseline"] == first["baseline"], "the C library's own"
    for name in ("tcmalloc", "mine"):
        assert second[name].is_relative_to(cache)
        assert file_digest(second[name]) == file_digest(first[name])

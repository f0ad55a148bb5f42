"""Build a venv, and print the paths of a Python with torch and of the libraries for tests, as JSON.

The venv is for the baseline, or for the environment named by ENVMATRIX_TEST_ENVIRONMENT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from envmatrix.engines.catalog import find_engine
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix import load
from envmatrix.plan.environment import all_libraries, resolve_environment
from envmatrix.system.resource_paths import bundled_matrix_file


def main() -> int:
    matrix = load(bundled_matrix_file())
    image = resolve_environment(matrix, os.environ.get("ENVMATRIX_TEST_ENVIRONMENT", "baseline"), {}).image
    try:
        prepared = find_engine("local").prepare(image, all_libraries(matrix), lambda text: print(text, file=sys.stderr))
    except EnvmatrixError as error:
        if "ENVMATRIX_TEST_ENVIRONMENT" in os.environ:
            print(error, file=sys.stderr)
            return 1
        print(f"no venv with torch, so tests that need one are skipped: {error}", file=sys.stderr)
        return 0
    site = next(Path(prepared.reference).glob("lib/python3*/site-packages"))
    found = {
        "BENCH_PYTHON": prepared.python,
        "BENCH_LIBRARIES": ":".join(prepared.libraries.values()),
        "BENCH_SITE_PACKAGES": str(site),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

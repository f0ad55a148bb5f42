"""`nox -s kinds` has the packages that these programs need; without them there is nothing to collect."""

import os

collect_ignore = [] if os.environ.get("ENVMATRIX_TEST_KINDS") else ["test_kinds.py"]

"""`nox -s kinds` has the packages that these programs need; without them there is nothing to collect."""

import os

#: A program may itself be a file of tests.
collect_ignore = ["programs"] if os.environ.get("ENVMATRIX_TEST_KINDS") else ["programs", "test_kinds.py"]

"""The public functions of envmatrix, for notebooks, tests and the command line. Nothing here prints or exits.

Pass ``progress`` to receive lines of progress. Every error is one of ``envmatrix.errors``.
"""

#: Formats of ``export``, without those that launchers add.
FORMS = ("sh", "dockerfile", "json")

"""The use cases, one function each, for notebooks, tests and the command line: nothing here prints or exits.

Progress goes to a ``progress`` that is silent unless one is given. Every error is one of ``envmatrix.errors``.
"""

#: The forms of ``export`` beside those that launchers add.
FORMS = ("sh", "dockerfile", "json")

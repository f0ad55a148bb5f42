"""One module a command: ``add_arguments`` and ``run``. Heavy imports stand inside ``run``: `--help` must be quick."""

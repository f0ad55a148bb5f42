"""Engines: they start processes in environments. A new engine is one module and one line in ``catalog``."""

"""Engines: what starts a process in an environment. A new engine is one file and one line in ``catalog``."""

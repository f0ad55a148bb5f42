"""Stopping rules: interim analyses, environments that leave a run early, missing trials, and the precision so far."""

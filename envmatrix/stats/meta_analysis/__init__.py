"""Meta-analysis: what the runs of many machines show together, and predict for another one."""

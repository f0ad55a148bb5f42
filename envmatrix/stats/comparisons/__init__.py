"""Comparison of two sides, within one run or between runs; replication of a run."""

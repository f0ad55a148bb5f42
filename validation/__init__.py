"""Validation of the method, not shipped: simulations of the statistics, self-benchmarks, storms of kills."""

"""Checks of the method itself, not shipped: simulations of the statistics, self-benchmarks, storms of kills."""

"""The benchmark that runs in every environment, with the standard library and torch only (Python 3.9+, torch 1.13+)."""

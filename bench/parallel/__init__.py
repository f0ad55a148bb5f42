"""Training on several processes or devices, with each strategy checked against one process (docs/parallel.md)."""

"""Training on more than one process or device, each way checked against one process (docs/parallel.md)."""

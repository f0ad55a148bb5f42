"""Operating-system layer: host facts, processes, signals, files, locks and progress."""

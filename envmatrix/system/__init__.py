"""The machine and its processes: host facts, starting and ending processes, files, locks, progress."""

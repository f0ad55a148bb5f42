"""The user's own program: its command, variables, files and mounts, and its first run."""

"""A program on the command line: its options, its first run, its environments and its benchmark."""

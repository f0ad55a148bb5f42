"""Numbers in a program's output: which one measures its speed, and a pattern that finds it again."""

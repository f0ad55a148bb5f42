"""What another package adds to envmatrix: docs/engines.md shows these files."""

"""An example package that extends envmatrix; docs/engines.md refers to it."""

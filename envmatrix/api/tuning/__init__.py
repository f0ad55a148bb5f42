"""The search of `envmatrix tune`: its arguments, its space, its run and its report."""

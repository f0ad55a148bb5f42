"""The search for the best environment (``envmatrix tune``): space, model, steps, loop, answer and report."""

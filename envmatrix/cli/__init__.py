"""The commands of ``envmatrix``, one module each; ``run`` imports heavy modules, so that `--help` stays fast."""

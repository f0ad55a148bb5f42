"""Statistical inference: simultaneous tests, moderated and long-run variances, change points."""

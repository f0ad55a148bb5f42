"""Prepare the images of a design, and run the trials of its plan."""

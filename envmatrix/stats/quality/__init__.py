"""Quality of the data: slow, failed and disturbed trials, and trials that did other work."""

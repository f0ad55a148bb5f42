"""From a design to prepared images, and from a slot of the plan to a trial."""

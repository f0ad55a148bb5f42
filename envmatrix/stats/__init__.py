"""From trials to effects: paired by block, simultaneous over what is compared, no trial dropped."""

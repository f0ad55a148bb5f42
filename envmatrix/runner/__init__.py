"""The loop over blocks: what runs next, when it is enough, and who is told."""

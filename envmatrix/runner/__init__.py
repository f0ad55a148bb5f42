"""The loop over blocks: what runs next, when to stop, and progress reports."""

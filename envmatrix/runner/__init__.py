"""The loop over blocks: what runs next, when to stop, and progress reports; packs of runs, and their reproduction."""

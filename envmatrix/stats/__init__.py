"""Statistics: effects from trials paired by block, with simultaneous intervals; no trial is dropped."""

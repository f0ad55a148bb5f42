"""Packs: a run as one archive, and its reproduction on another machine."""

"""Packs of finished runs, and their repetition on another machine."""

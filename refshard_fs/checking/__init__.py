"""Checks of a whole set: what it says of itself, of its targets, and of its chunks."""

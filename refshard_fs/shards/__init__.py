"""Formats that pack many chunks into one object, with an index inside. Each module is one format."""

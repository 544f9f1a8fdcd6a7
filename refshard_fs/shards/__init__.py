"""Formats that pack many chunks into one object, with an index inside. Each module is one format."""

FORMATS = ("bcolz", "bloscpack")  # the modules here that have a FORMAT

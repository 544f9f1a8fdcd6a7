"""Searches for inputs that break a parser: harnesses in ``parsers``, driven by `driver` or by atheris."""

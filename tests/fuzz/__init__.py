"""Search for inputs that break a parser: `driver` or atheris runs the harnesses in ``parsers``."""

"""The format bcolz. No I/O here."""

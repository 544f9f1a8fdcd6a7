"""The format zip. No I/O here."""

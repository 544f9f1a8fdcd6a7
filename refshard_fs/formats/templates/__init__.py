"""The format templates. No I/O here."""

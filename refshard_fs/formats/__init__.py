"""The sources that can be opened: one folder a format. No I/O here."""

"""The format virtual_concat. No I/O here."""

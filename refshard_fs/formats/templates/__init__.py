"""Expand templates in kerchunk's JSON sets. No I/O here."""

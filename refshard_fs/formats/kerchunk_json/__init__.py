"""The format kerchunk_json. No I/O here."""

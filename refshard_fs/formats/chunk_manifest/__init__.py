"""The format chunk_manifest. No I/O here."""

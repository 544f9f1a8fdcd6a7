"""What every layer speaks: spans and entries, keys, key spaces, metadata. No I/O here."""

"""The values that all layers share: spans and entries, keys, key spaces, metadata. No I/O here."""

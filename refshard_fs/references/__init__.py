"""Reference sets: build, edit, encode and look them up. No I/O here."""

"""Show sharded arrays as arrays of their inner chunks. No I/O here."""

"""Sharded arrays shown as arrays of their inner chunks. No I/O here."""

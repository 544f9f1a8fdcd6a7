"""Canonical URLs, and the rules for what a manifest may make this machine fetch. No I/O here."""

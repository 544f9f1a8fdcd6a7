"""Canonical URLs, and the rules for the URLs that a manifest may make this machine fetch. No I/O here."""

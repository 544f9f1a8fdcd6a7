"""The policy: canonical URLs, and what a manifest may make this machine fetch. No I/O here."""

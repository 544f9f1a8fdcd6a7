"""The value a reference set is, and how it is built, edited, stored and looked up. No I/O here."""

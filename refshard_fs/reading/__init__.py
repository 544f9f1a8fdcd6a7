"""The engine: what is asked is planned, fetched, checked, and handed out. Where it is comes from the key space."""

"""Templates in kerchunk's JSON sets. No I/O here."""

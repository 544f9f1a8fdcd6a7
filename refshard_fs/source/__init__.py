"""What a filesystem opens: its options, the source itself, and the uncommitted writes to it."""

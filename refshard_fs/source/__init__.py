"""Options of a filesystem, the opened source, and the uncommitted writes to it."""

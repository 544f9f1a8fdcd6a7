"""Writing: whole objects in the filesystems of the pool, each on condition that it is a known version."""

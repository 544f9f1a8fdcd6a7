"""Write whole objects in the filesystems of the pool, on condition that an object has the version that was read."""

"""Write whole objects in the filesystems of the pool, each only if it still has the version that was read."""

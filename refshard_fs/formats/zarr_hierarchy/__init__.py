"""The format zarr_hierarchy. No I/O here."""

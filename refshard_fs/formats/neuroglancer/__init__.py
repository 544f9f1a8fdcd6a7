"""The format neuroglancer. No I/O here."""

"""Formats that pack many chunks into one object, with an index inside. Each module is one format."""

SHARD_FORMATS = ("indexed_v2", "sharding_v3")  # the modules here that have a SHARD_FORMAT

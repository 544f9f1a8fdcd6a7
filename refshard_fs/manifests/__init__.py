"""Formats that say where each key's bytes lie: reference sets and chunk manifests. Each module is one format."""

FORMATS = ("hierarchy", "kerchunk_json", "kerchunk_parquet", "prefix_map")  # the modules here that have a FORMAT

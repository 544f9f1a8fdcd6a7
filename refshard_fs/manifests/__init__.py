"""Formats that say where each key's bytes lie: reference sets and chunk manifests. Each module is one format."""

FORMATS = ("kerchunk_json",)  # the modules here that have a FORMAT

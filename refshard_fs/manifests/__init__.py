"""Formats that say where each key's bytes lie: reference sets and chunk manifests. Each module is one format."""

"""Reference manifests and shard indexes as plain zarr chunks, for any fsspec-aware tool."""

__version__ = "0.1.0"

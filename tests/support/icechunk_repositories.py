"""Read Icechunk repositories by zarr-python and the package icechunk, without this package."""

from __future__ import annotations

from typing import Any

__all__ = ["open_session", "read"]


def open_session(url: str, **version: Any) -> Any:
    """Open a session of a local repository at a version, by default the branch ``main``."""
    import icechunk

    storage = icechunk.local_filesystem_storage(url)
    config = icechunk.Repository.fetch_config(storage)
    containers = {} if config is None else config.virtual_chunk_containers or {}
    own, web = icechunk.credentials.LocalFileSystemAccess, icechunk.credentials.HttpAccess
    access = icechunk.containers_credentials({url: own if url.startswith("file:") else web for url in containers})
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    return repository.readonly_session(**(version or {"branch": "main"}))


def read(url: str, **version: Any) -> Any:
    """Return the dataset that xarray reads from the repository."""
    import xarray as xr

    return xr.open_zarr(open_session(url, **version).store, consolidated=False, decode_times=False).load()

"""Make stores of the same chunks for VirtualiZarr (`ManifestStore`, over obstore) and Icechunk (virtual chunks).

Both packages read over HTTP in Rust, and show arrays of zarr version 3.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zarr

__all__ = ["make_icechunk_store", "make_virtualizarr_store"]


def _split_arrays(
    refs: dict[str, Any],
) -> dict[str, tuple[dict[str, Any], dict[tuple[int, ...], tuple[str, int, int]]]]:
    """Return metadata and chunks (URL, offset, length) of each array of a set of zarr version 2 with ``.`` in keys."""
    out: dict[str, tuple[dict[str, Any], dict[tuple[int, ...], tuple[str, int, int]]]] = {}
    for key, value in refs.items():
        name, _, tail = key.rpartition("/")
        if tail == ".zarray":
            out.setdefault(name, ({}, {}))[0].update(json.loads(value))
        elif isinstance(value, list):
            out.setdefault(name, ({}, {}))[1][tuple(map(int, tail.split(".")))] = tuple(value)  # type: ignore[assignment]  # JSON
    return out


def make_virtualizarr_store(refs: dict[str, Any], server: str) -> Any:
    """Return a `ManifestStore` of ``refs``, whose targets are on ``server``."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import HTTPStore
    from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup, ManifestStore
    from virtualizarr.manifests.utils import create_v3_array_metadata

    arrays = {}
    for name, (meta, chunks) in _split_arrays(refs).items():
        metadata = create_v3_array_metadata(
            shape=tuple(meta["shape"]),
            data_type=np.dtype(meta["dtype"]),
            chunk_shape=tuple(meta["chunks"]),
            codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
            fill_value=0,
        )
        entries = {
            ".".join(map(str, at)): {"path": url, "offset": offset, "length": length}
            for at, (url, offset, length) in chunks.items()
        }
        arrays[name] = ManifestArray(metadata=metadata, chunkmanifest=ChunkManifest(entries=entries))  # type: ignore[arg-type]  # dicts
    store = HTTPStore.from_url(server, client_options={"allow_http": True})
    return ManifestStore(ManifestGroup(arrays=arrays), registry=ObjectStoreRegistry({server: store}))


def make_icechunk_store(refs: dict[str, Any], server: str) -> Any:
    """Return the store of a repository in memory whose virtual chunks are ``refs``."""
    import icechunk

    icechunk.set_logs_filter("error")
    prefix = server + "/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store=icechunk.http_store()))
    repo = icechunk.Repository.create(
        icechunk.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None}
    )
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name, (meta, chunks) in _split_arrays(refs).items():
        group.create_array(
            name, shape=meta["shape"], chunks=tuple(meta["chunks"]), dtype=meta["dtype"], compressors=None, fill_value=0
        )
        specs = [
            icechunk.VirtualChunkSpec(list(at), url, offset, length) for at, (url, offset, length) in chunks.items()
        ]
        session.store.set_virtual_refs(name, specs)
    session.commit("references")
    return repo.readonly_session("main").store

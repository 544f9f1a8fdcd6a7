"""xarray's ``engine="refshard"``: a source opened in one call, as ``engine="kerchunk"`` does it.

Importing this module is cheap, because xarray imports every engine to list them; zarr is
imported when something is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr
from fsspec.core import url_to_fs
from xarray.backends import BackendEntrypoint, ZarrBackendEntrypoint

from refshard_fs.fs import RefShardFileSystem

__all__ = ["RefShardBackend"]

_URLS = ("refshard://", "refshard::")


class RefShardBackend(BackendEntrypoint):
    """Open whatever `RefShardFileSystem` opens as a Dataset or a DataTree.

    ``filename_or_obj`` is that class's ``fo`` (a path, a URL, a dict of references, bytes,
    a file object) or a ``refshard://`` or ``refshard::`` URL; ``storage_options`` are its
    other arguments. All other keywords go to xarray's zarr engine (``group``,
    ``zarr_format``, ``consolidated``; the last is False by default, since sets of
    references list fast), and ``open_dataset_options`` to `xarray.open_dataset` itself.

    >>> import json, numpy, xarray
    >>> meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta),
    ...         "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}', "a/0": "abc"}
    >>> xarray.open_dataset(refs, engine="refshard")["a"].values
    array([97, 98, 99], dtype=uint8)
    """

    description = "Open reference sets, archives and shards as zarr, through refshard_fs"
    supports_groups = True
    open_dataset_parameters = (
        "filename_or_obj",
        "drop_variables",
        "storage_options",
        "open_dataset_options",
        "group",
        "consolidated",
        "zarr_format",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "use_cftime",
        "decode_coords",
        "decode_timedelta",
    )

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        open_dataset_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = False,
        **options: Any,
    ) -> xr.Dataset:
        """Return one group as a Dataset that reads when its values are asked for."""
        store = _store(filename_or_obj, storage_options)
        options |= {"drop_variables": drop_variables, "consolidated": consolidated}
        if open_dataset_options:  # there may be some that only open_dataset knows: chunks, decode_cf
            return xr.open_dataset(store, engine="zarr", **{**options, **open_dataset_options})
        return ZarrBackendEntrypoint().open_dataset(store, **options)

    def open_datatree(
        self,
        filename_or_obj: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = False,
        **options: Any,
    ) -> xr.DataTree:
        """Return all groups as a DataTree; they must fit each other."""
        store = _store(filename_or_obj, storage_options)
        return ZarrBackendEntrypoint().open_datatree(store, consolidated=consolidated, **options)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = False,
        **options: Any,
    ) -> dict[str, xr.Dataset]:
        """Return all groups, each as a Dataset, by path."""
        store = _store(filename_or_obj, storage_options)
        return ZarrBackendEntrypoint().open_groups_as_dict(store, consolidated=consolidated, **options)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether it is a URL of ours; other names do not tell, and looking into files is not for guessing."""
        return isinstance(filename_or_obj, str) and filename_or_obj.startswith(_URLS)


def _store(source: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return ``source`` as a store of the zarr that is installed."""
    try:
        from zarr.storage import FsspecStore
    except ImportError:  # zarr 2: a synchronous mapping
        return _filesystem(source, storage_options or {}).get_mapper("")
    fs = _filesystem(source, {**(storage_options or {}), "asynchronous": True})
    return FsspecStore(fs, read_only=True, path="")


def _filesystem(source: Any, options: Mapping[str, Any]) -> RefShardFileSystem:
    if isinstance(source, str) and source.startswith(_URLS):
        fs: RefShardFileSystem = url_to_fs(source, **options)[0]
        return fs
    return RefShardFileSystem(fo=source, **options)

"""xarray's ``engine="refshard"``: a source opened in one call, as ``engine="kerchunk"`` does it.

Importing this module is cheap, because xarray imports every engine to list them; zarr is
imported when something is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr
from fsspec.core import url_to_fs
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint, ZarrBackendEntrypoint, ZarrStore
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from refshard_fs.fs import RefShardFileSystem

__all__ = ["AnnouncingEntrypoint", "RefShardBackend", "open_announcing"]

# ----------------------------------------------------------------------------------------------------
# xarray's lazily indexed arrays, which know what will be read before zarr asks for it, and say so.
#
# Each selection (of a ``.load()``, an ``.isel``, a dask task) is announced to the filesystem, which fetches all of its
# chunks at once; zarr's reads then find them there or under way.


_WHERE = {  # what opening a group takes, in one xarray or another
    "group", "consolidated", "zarr_format", "zarr_version", "mode", "storage_options", "synchronizer", "chunk_store",
    "use_zarr_fill_value_as_mask", "cache_members",
}  # fmt: skip


class _Array(ZarrArrayWrapper):
    """A zarr array that announces what is read of it."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        self._announce(key)
        return super().__getitem__(key)

    async def async_getitem(self, key: Any) -> Any:
        self._announce(key, here=True)
        return await super().async_getitem(key)

    def _announce(self, key: indexing.ExplicitIndexer, *, here: bool = False) -> None:
        fs = getattr(self._array.store, "fs", None)  # zarr 2 asks for all chunks of a selection at once: no need
        if isinstance(fs, RefShardFileSystem):
            orthogonal = isinstance(key, indexing.OuterIndexer)
            fs.announce(self._array.path, key.tuple, mode="orthogonal" if orthogonal else "numpy", here=here)


class _Store(ZarrStore):
    """A group whose arrays announce what is read of them."""

    def open_store_variable(self, name: str, *args: Any) -> xr.Variable:
        variable: xr.Variable = super().open_store_variable(name, *args)
        members = getattr(self, "members", self.zarr_group)
        data = indexing.LazilyIndexedArray(_Array(members[name]))
        return xr.Variable(variable.dims, data, variable.attrs, variable.encoding)


def open_announcing(store: Any, options: dict[str, Any]) -> ZarrStore:
    """Return the group that ``options`` name of a zarr store; what was of use is taken out of them."""
    where = {name: options.pop(name) for name in _WHERE & options.keys()}
    group: ZarrStore = _Store.open_group(store, **{"mode": "r", **where})
    return group


class AnnouncingEntrypoint(ZarrBackendEntrypoint):
    """The zarr engine, with arrays that announce what is read of them."""

    def open_dataset(self, filename_or_obj: Any, **options: Any) -> xr.Dataset:
        """Return one group."""
        group = open_announcing(filename_or_obj, options)
        return StoreBackendEntrypoint().open_dataset(group, **options)

    def open_groups_as_dict(
        self, filename_or_obj: Any, *, group: str | None = None, **options: Any
    ) -> dict[str, xr.Dataset]:
        """Return all groups below ``group``, by path."""
        top = "/" + (group or "").strip("/")
        where = {name: options.pop(name) for name in _WHERE & options.keys()}
        stores = _Store.open_store(filename_or_obj, group=top, **{"mode": "r", **where})
        found = {}
        for path, store in stores.items():
            name = path.removeprefix(top).strip("/") if group else "/" + path.strip("/")
            found[name or "."] = StoreBackendEntrypoint().open_dataset(store, **options)
        return found


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
            options |= open_dataset_options
            return xr.open_dataset(open_announcing(store, options), engine="store", **options)
        return AnnouncingEntrypoint().open_dataset(store, **options)

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
        return AnnouncingEntrypoint().open_datatree(store, consolidated=consolidated, **options)

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
        return AnnouncingEntrypoint().open_groups_as_dict(store, consolidated=consolidated, **options)

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

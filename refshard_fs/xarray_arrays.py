"""xarray's lazily indexed arrays, which know what will be read before zarr asks for it, and say so.

Each selection (of a ``.load()``, an ``.isel``, a dask task) is announced to the filesystem, which fetches all of its
chunks at once; zarr's reads then find them there or under way.
"""

from __future__ import annotations

from typing import Any

import xarray as xr
from xarray.backends import StoreBackendEntrypoint, ZarrBackendEntrypoint, ZarrStore
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from refshard_fs.fs import RefShardFileSystem

__all__ = ["AnnouncingEntrypoint", "open_announcing"]

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

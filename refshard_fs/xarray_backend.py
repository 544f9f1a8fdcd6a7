"""xarray's ``engine="refshard"``: open a source in one call, as ``engine="kerchunk"`` does.

Importing this module is cheap, because xarray imports every engine to list them; zarr is
imported when something is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import math
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import numpy as np
import xarray as xr
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import url_to_fs
from xarray.backends import BackendEntrypoint, ZarrBackendEntrypoint
from xarray.backends.zarr import ZarrStore
from xarray.coding.variables import EndianCoder
from xarray.core.indexing import LazilyIndexedArray

from refshard_fs.core.array_group import PACKING, PACKING_TYPE
from refshard_fs.core.keys import join
from refshard_fs.direct_array import DirectArray, document_of, run_by_zarr
from refshard_fs.errors import RefShardError
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.reading.selection import GUARD, TOGETHER, SelectionLimit
from refshard_fs.tools.progress import progress
from refshard_fs.tools.trial import OpeningGuard
from refshard_fs.unpacking import unpack_in_blocks

M = TypeVar("M")
T = TypeVar("T", xr.Dataset, xr.DataArray)

# The least bytes of a chunk of dask after decoding: dask needs about as much time for a task as for decoding 1 MiB.
TASK = 1 << 20
MOST = 16  # The largest chunk of dask is this many times TASK: variables with the same chunks grow by the same factor.

_PLAIN = ("refshard", "reference")  # protocols of URLs that name a key; the source is in the options
_URLS = ("refshard://", "refshard::", "reference://")


class RefShardBackend(BackendEntrypoint):
    """Open any source of `RefShardFileSystem` as a Dataset or a DataTree.

    ``filename_or_obj`` is the argument ``fo`` of `RefShardFileSystem` (a path, a URL, a dict of references, bytes,
    a file object) or a ``refshard://`` or ``refshard::`` URL. ``storage_options`` are the other arguments of
    `RefShardFileSystem`. ``open_dataset_options`` go to `xarray.open_dataset`, and all other keywords
    (``group``, ``zarr_format``, ``consolidated``) to xarray's zarr engine.

    By default, consolidated metadata are read if the source has them at its root. In a zarr store, they may be older
    than the arrays: chunks that do not match them raise `ManifestError`, and ``consolidated=False`` reads the metadata
    of each array instead.

    With ``chunks={}``, a chunk of dask holds one or more stored chunks, joined along the first dimensions until they
    have ``task_size`` bytes after decoding, because each task costs about a millisecond. Variables that have the same
    stored chunks get the same chunks of dask, of at most 16 times ``task_size``. With ``task_size=0``, each stored
    chunk is a chunk of dask.

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
        "open_dataset_options",
        "task_size",
        *inspect.signature(ZarrBackendEntrypoint.open_dataset).parameters,
    )

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        open_dataset_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = None,
        task_size: int = TASK,
        **options: Any,
    ) -> xr.Dataset:
        """Open one group as a Dataset that reads values when they are used."""
        self._check_names(options)
        store = _store(filename_or_obj, storage_options)
        options["drop_variables"] = drop_variables
        options["consolidated"] = _consolidates(store, options.get("group")) if consolidated is None else consolidated
        if open_dataset_options:  # the engine does not know chunks and decode_cf, which may be among these
            options |= open_dataset_options
        with _guarding(store.fs):
            with _explain_missing_group(store, options.get("group")):
                options["store"] = _TypedStore.open_group(store, mode="r", **_opening(options))
                options["store"].task_size = task_size
                dropped = options["drop_variables"] or ()
                options["store"].not_loaded = {dropped} if isinstance(dropped, str) else set(dropped)
            if open_dataset_options:
                ds = xr.open_dataset(store, engine="zarr", **options)
                unpack_in_blocks(ds.variables.values())
                return ds
            ds = ZarrBackendEntrypoint().open_dataset(store, **options)
            unpack_in_blocks(ds.variables.values())
            _load_coordinates([ds])
        if not ds.variables:
            _warn_of_groups(options["store"].zarr_group, options.get("group"))
        return ds

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open all groups as a DataTree, with the options of `open_groups_as_dict`.

        ValueError, by xarray, if the coordinates of a group do not fit its parent's.
        """
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        storage_options: Mapping[str, Any] | None = None,
        consolidated: bool | None = None,
        task_size: int = TASK,
        **options: Any,
    ) -> dict[str, xr.Dataset]:
        """Open each group as a Dataset; return them by path."""
        self._check_names(options)
        store = _store(filename_or_obj, storage_options)
        group = options.pop("group", None) or ""
        options["consolidated"] = _consolidates(store, group) if consolidated is None else consolidated
        with _guarding(store.fs):
            with _explain_missing_group(store, group):
                stores = _TypedStore.open_all(store, str(PurePosixPath("/") / group), _opening(options))
            for typed in stores.values():
                typed.task_size = task_size
            groups = {
                path: ZarrBackendEntrypoint().open_dataset(store, store=typed, **options)
                for path, typed in stores.items()
            }
            for ds in groups.values():
                unpack_in_blocks(ds.variables.values())
            _load_coordinates(groups.values())
        return groups

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether ``filename_or_obj`` is a ``refshard`` URL, without reading it: xarray asks every engine."""
        url = filename_or_obj
        return isinstance(url, str) and (url.startswith(("refshard://", "refshard::")) or url.endswith("|refshard:"))

    def _check_names(self, options: Iterable[str]) -> None:
        """Raise TypeError for an option that xarray's zarr engine does not have; most often, it is for the source."""
        for name in options:
            if name not in self.open_dataset_parameters:
                near = difflib.get_close_matches(name, self.open_dataset_parameters, 1)
                hint = f": did you mean {near[0]}=?" if near else "."
                raise TypeError(
                    f"engine='refshard' has no argument {name!r}{hint} Pass options of the source as "
                    f"storage_options={{{name!r}: ...}}"
                )


_FILTERS: Final = {"shuffle": "shuffle", "fletcher32": "fletcher32", "zlib": "zlib", "gzip": "zlib"}


def _netcdf_encoding(variable: xr.Variable) -> dict[str, Any]:
    """Return the encoding with which `xarray.Dataset.to_netcdf` compresses a variable as its source does.

    The encoding is empty if NetCDF does not have one of the codecs.
    """
    encoding = variable.encoding
    codecs = [*(encoding.get("filters") or ()), *(encoding.get("compressors") or ()), encoding.get("compressor")]
    netcdf: dict[str, Any] = {}
    for codec in filter(None, codecs):
        name = str(getattr(codec, "codec_id", None) or getattr(codec, "codec_name", type(codec).__name__))
        option = _FILTERS.get(name.removeprefix("numcodecs.").removesuffix("Codec").lower())
        if option is None:
            return {}
        netcdf[option] = True
        if option == "zlib":
            netcdf["complevel"] = getattr(codec, "level", None) or getattr(codec, "codec_config", {}).get("level", 4)
    chunks = encoding.get("chunks")
    return {**netcdf, "chunksizes": tuple(chunks), "original_shape": variable.shape} if netcdf and chunks else {}


class _TypedStore(ZarrStore):
    """xarray's store, with the unlimited dimensions and the dtypes of attributes, which zarr's metadata cannot hold.

    JSON has one type of numbers, but xarray decodes to single or double precision by the dtype of ``scale_factor``.
    Codecs of zarr format 2 are left out of ``encoding``: `xarray.Dataset.to_zarr` would pass them to zarr format 3,
    which refuses them.
    """

    task_size = 0
    # Names of index coordinates that are not loaded together with the others; None for all of them.
    not_loaded: Container[Any] | None = None

    @classmethod
    def open_all(cls, store: Any, root: str, opening: Mapping[str, Any]) -> dict[str, _TypedStore]:
        """Open the group ``root`` and all groups below it; return them by path.

        Paths begin with "/" if ``root`` is "/", and are relative to ``root`` otherwise.
        """
        top = PurePosixPath("/" if root == "/" else ".")
        if not hasattr(cls, "get_child_store"):  # older versions of xarray, which are used with zarr 2
            stores = cls.open_store(store, mode="r", group=root, **opening)
            return {str(top / PurePosixPath(path).relative_to(root)): typed for path, typed in stores.items()}
        return dict(cls.open_group(store, mode="r", group=root, **opening)._walk(top))

    def _walk(self, path: PurePosixPath) -> Iterator[tuple[str, _TypedStore]]:
        """Yield this group and all below it. Each array is opened once; xarray's ``open_store`` opens each twice."""
        yield str(path), self
        for name, member in self._in_order(self.members).items():
            if isinstance(member, type(self.zarr_group)):
                yield from self.get_child_store(name)._walk(path / name)

    def get_variables(self) -> Any:
        variables = self._in_order(super().get_variables())
        if self.not_loaded is not None:  # xarray would read one after the other: first value, last value, all values
            indexes = {name: v for name, v in variables.items() if v.dims == (name,) and name not in self.not_loaded}
            _load_together(indexes.values())
        if self.task_size:
            _enlarge(variables, self.task_size)
        return variables

    def _in_order(self, members: Mapping[Any, M]) -> Mapping[Any, M]:
        """Sort ``members`` in the order of the source; without consolidated metadata, zarr sorts them by name."""
        fs = self._filesystem
        if fs is None:
            return members
        by_path = {join(self.zarr_group.path, name): name for name in members}
        return {by_path[path]: members[by_path[path]] for path in fs.source.open().in_order(by_path)}

    def open_store_variable(self, name: Any, *arguments: Any) -> xr.Variable:
        variable: xr.Variable = super().open_store_variable(name, *arguments)
        fs = self._filesystem
        if fs is not None and run_by_zarr() is not None:
            array = DirectArray(self._array(name), fs)
            variable = xr.Variable(variable.dims, LazilyIndexedArray(array), variable.attrs, variable.encoding)
        guard = _guard.get()
        if guard is not None:
            is_index = variable.dims == (name,)
            document = partial(document_of, self._array(name))
            guard.add(join(self.zarr_group.path, name), document, is_loaded=is_index)
        if "_Unsigned" in variable.attrs:  # xarray's decoder of _Unsigned assumes the machine's byte order
            variable = EndianCoder().decode(variable, name)
        self._restore_dtypes(variable.attrs, name)
        if self._filesystem is not None:
            variable.encoding |= _netcdf_encoding(variable)
            metadata = getattr(self.zarr_group, "metadata", None)  # None in zarr 2, which can write these codecs
            if getattr(metadata, "zarr_format", None) == 2:
                for name in ("compressors", "filters"):
                    variable.encoding.pop(name, None)
        return variable

    def _array(self, name: Any) -> Any:
        """Return an array of the group: from xarray's cache, if it is there, or newly opened."""
        return self.members[name] if getattr(self, "_cache_members", False) else self.zarr_group[name]

    def get_attrs(self) -> dict[str, Any]:
        attributes: dict[str, Any] = super().get_attrs()
        self._restore_dtypes(attributes, "")
        return attributes

    def get_encoding(self) -> dict[str, Any]:
        if self._filesystem is None:
            return {}
        unlimited = self._filesystem.unlimited_dimensions.get(self.zarr_group.path)
        return {} if unlimited is None else {"unlimited_dims": set(unlimited)}

    @property
    def _filesystem(self) -> RefShardFileSystem | None:
        fs = getattr(self.zarr_group.store, "fs", None)
        return fs if isinstance(fs, RefShardFileSystem) else None

    def _restore_dtypes(self, attributes: dict[Any, Any], name: str) -> None:
        """Convert ``attributes``, of the group or of its member ``name``, to the dtypes that they have in the file."""
        if self._filesystem is not None:
            if self._filesystem.source.open().format == "hdf5":  # h5netcdf, too, shows a list of one value as a scalar
                for attribute, value in attributes.items():
                    if isinstance(value, list) and len(value) == 1:
                        attributes[attribute] = value[0]
            single = attributes.pop(PACKING_TYPE, None) == "float32"
            for attribute in PACKING if single else ():
                if isinstance(attributes.get(attribute), float | int):
                    attributes[attribute] = np.float32(attributes[attribute])
            path = join(self.zarr_group.path, name)
            for attribute, dtype in self._filesystem.attribute_dtypes.get(path, {}).items():
                if attribute in attributes:
                    attributes[attribute] = _convert(attributes[attribute], np.dtype(dtype))


class _Preferred(dict[Any, Any]):
    """The stored chunks of a variable by dimension; `get` with a default returns the enlarged chunks instead.

    xarray passes a default when it makes chunks, but not when it warns that the user's chunks divide stored chunks.
    """

    def __init__(self, stored: Mapping[Any, Any], enlarged: Mapping[Any, Any]) -> None:
        super().__init__(stored)
        self.enlarged = enlarged

    def get(self, dim: Any, default: Any = None) -> Any:
        return super().get(dim) if default is None else self.enlarged.get(dim, default)

    def __reduce__(self) -> Any:
        return _Preferred, (dict(self), self.enlarged)


def _enlarge(variables: Mapping[Any, xr.Variable], least: int) -> None:
    """Enlarge the chunks of dask along the first dimensions until they have ``least`` bytes or span the whole array.

    Variables with the same stored chunks along a dimension get the same chunks there. For that, chunks may grow up to
    ``MOST * least`` bytes.
    """
    regular: dict[Any, dict[Any, int]] = {}
    for name, variable in variables.items():
        stored = variable.encoding.get("preferred_chunks", {})
        is_regular = len(stored) == variable.ndim and all(isinstance(size, int) for size in stored.values())
        if is_regular and variable.size and variable.dims != (name,) and variable.dtype.kind not in "OT":
            regular[name] = dict(stored)
    sizes = {name: variables[name].dtype.itemsize * math.prod(stored.values()) for name, stored in regular.items()}
    enlarged = {name: dict(stored) for name, stored in regular.items()}
    for dim, size in dict.fromkeys(along for stored in regular.values() for along in stored.items()):
        alike = [name for name, stored in regular.items() if stored.get(dim) == size < variables[name].sizes[dim]]
        counts = {name: -(-variables[name].sizes[dim] // size) for name in alike}
        needed = [min(-(-least // sizes[name]), counts[name]) for name in alike if sizes[name] < least]
        largest = max((sizes[name] for name in alike), default=1)
        times = min([*needed, max(MOST * least // largest, 1)]) if needed else 1
        for name in alike:
            enlarged[name][dim] = times * size
            sizes[name] *= times
    for name, chunks in enlarged.items():
        if chunks != regular[name]:
            variables[name].encoding["preferred_chunks"] = _Preferred(regular[name], chunks)


def _convert(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert an attribute's value to the file's dtype; complex numbers are pairs in JSON."""
    if dtype.kind == "c":
        pairs = np.asarray(value, f"f{dtype.itemsize // 2}")
        return pairs.view(dtype)[..., 0][()] if pairs.size else np.empty(0, dtype)
    return dtype.type(value)


def _opening(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``options`` that xarray's zarr store takes; its engine takes more."""
    names = ("group", "consolidated", "zarr_format", "cache_members")
    return {name: options[name] for name in names if name in options}


def _store(source: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Make a store of ``source`` for the installed version of zarr."""
    try:
        from zarr.storage import FsspecStore
    except ImportError:  # zarr 2 takes a synchronous mapping
        return _filesystem(source, storage_options or {}).get_mapper("")
    fs = _filesystem(source, {**(storage_options or {}), "asynchronous": True})
    return FsspecStore(fs, read_only=True, path="")


def _consolidates(store: Any, group: str | None) -> bool:
    """Return whether ``group`` has consolidated metadata: one request instead of one or more for each array."""
    sync, source = run_by_zarr(), store.fs.source
    if sync is None or source.transaction is not None:  # uncommitted writes may change an array's metadata alone
        return False
    keyspace = sync(source.keyspace())
    is_root = not (group or "").strip("/")
    return bool(keyspace.consolidates and (is_root or keyspace.format != "zarr-hierarchy"))


def load(ds: T, *, callback: Callback = DEFAULT_CALLBACK) -> T:
    """Load all variables of a Dataset or a DataArray together, and return it, as ``ds.load()`` does.

    ``ds.load()`` reads one variable after the other. This function reads as many at once as fit into the filesystem's
    ``max_memory``. ``callback`` counts the variables that have arrived. The function works in notebooks and in any
    other thread that runs an event loop. If a read fails, it raises the first error, which names the key.

    >>> import json, refshard_fs, xarray
    >>> meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta),
    ...         "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}', "a/0": "abc"}
    >>> refshard_fs.load(xarray.open_dataset(refs, engine="refshard"))["a"].values
    array([97, 98, 99], dtype=uint8)
    """
    if isinstance(ds, xr.DataArray):
        variables = [ds.variable, *(coordinate.variable for coordinate in ds.coords.values())]
    else:
        variables = list(ds.variables.values())
    with progress("load", callback) as counter:
        counter.set_size(len(variables))
        _load_together(variables, counter.relative_update)
    return ds.load()  # this loads the variables of dask


def _load_coordinates(groups: Iterable[xr.Dataset]) -> None:
    """Load all index coordinates together; xarray would load one after the other, to make its indexes."""
    coordinates = [v for ds in groups for name, v in ds.variables.items() if v.dims == (name,)]
    _load_together(coordinates)
    if _guard.get() is not None:
        for variable in coordinates:  # `_load_together` skips some, which xarray would load later, without the guard
            variable.load()


_guard: ContextVar[OpeningGuard | None] = ContextVar("_guard", default=None)


@contextlib.contextmanager
def _guarding(fs: RefShardFileSystem) -> Iterator[None]:
    """Limit the memory and the time of decoding in this block, unless the source is the user's own."""
    fs.source.open()  # `is_own` is known only then
    guard = None if fs.source.is_own else OpeningGuard()
    tokens = _guard.set(guard), GUARD.set(None if guard is None else guard.check)
    try:
        yield
    finally:
        _guard.reset(tokens[0])
        GUARD.reset(tokens[1])


def _load_together(variables: Iterable[xr.Variable], on_progress: Callable[[int], object] | None = None) -> None:
    variables = list(variables)
    sync = run_by_zarr()
    if sync is None or not hasattr(xr.Variable, "load_async"):  # old versions: xarray loads one after the other
        return
    if all(variable._in_memory or variable.chunks is not None for variable in variables):
        return

    async def load_variable(variable: xr.Variable) -> None:
        if not variable._in_memory and variable.chunks is None:
            with contextlib.suppress(NotImplementedError):  # load_async refuses big-endian numbers; load() reads them
                await variable.load_async()
        if on_progress is not None:
            on_progress(1)

    async def load_all() -> None:
        TOGETHER.set(SelectionLimit())  # a context variable: only the tasks made here see it
        tasks = [asyncio.ensure_future(load_variable(variable)) for variable in variables]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    sync(load_all())


@contextlib.contextmanager
def _explain_missing_group(store: Any, group: str | None) -> Iterator[None]:
    """Raise FileNotFoundError with the names of the groups that exist, if ``group`` does not."""
    try:
        yield
    except (KeyError, FileNotFoundError, ValueError) as e:  # KeyError: consolidated metadata; ValueError: zarr 2
        path = (group or "").strip("/")
        if isinstance(e, RefShardError) or not path:
            raise
        sync = run_by_zarr()  # None with zarr 2, which has a synchronous filesystem
        if store.fs.exists(path) if sync is None else sync(store.fs._exists(path)):
            raise
        import zarr

        names = sorted(zarr.open_group(store, mode="r").group_keys())
        known = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        raise FileNotFoundError(f"there is no group {group!r}: the groups at the root are {known or '(none)'}") from e


def _warn_of_groups(root: Any, group: str | None) -> None:
    """Warn that a group has no arrays of its own, and name those below it."""
    names = sorted(root.group_keys())
    if names:
        path = f"{(group or '').strip('/')}/{names[0]}".strip("/")
        warnings.warn(
            f"{group or 'the root group'} has no variables, but it has groups: {', '.join(names[:8])}"
            f"{' ...' if len(names) > 8 else ''}. Open one with group={path!r}, or all with xarray.open_datatree",
            UserWarning,
            stacklevel=4,
        )


def _filesystem(source: Any, options: Mapping[str, Any]) -> RefShardFileSystem:
    if isinstance(source, RefShardFileSystem):  # a copy shares the open source
        return type(source)(*source.storage_args, **{**source.storage_options, **options})
    if isinstance(source, str) and source.startswith(_URLS):
        scheme, _, rest = source.partition("://")
        if rest and scheme in _PLAIN and "fo" not in options:
            raise ValueError(
                f"{source!r} names a key, but the source is missing: if {rest!r} is the source, pass {rest!r} or "
                f"'refshard::{rest}', or pass 'refshard://' with storage_options={{'fo': {rest!r}}}"
            )
        if scheme == "reference":
            source = f"refshard://{rest}"
        fs: RefShardFileSystem = url_to_fs(source, **options)[0]
        return fs
    return RefShardFileSystem(fo=source, **options)

"""xarray's ``engine="refshard"``: open a source in one call, as ``engine="kerchunk"`` does.

Importing this module is cheap, because xarray imports every engine to list them. zarr is imported only for arrays that
`direct_array` does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import xarray as xr
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.core import url_to_fs
from xarray.backends import BackendEntrypoint, StoreBackendEntrypoint, ZarrBackendEntrypoint

from refshard_fs.core.keys import join, make_relative, parent
from refshard_fs.core.stats import format_count
from refshard_fs.core.zarrmeta import zarr_major
from refshard_fs.direct_array import find_direct_array
from refshard_fs.errors import sanitize
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.group_metadata import GroupNode, read_groups, read_groups_now
from refshard_fs.reading.selection import GUARD, TOGETHER, SelectionLimit
from refshard_fs.source.source import wait
from refshard_fs.tools.progress import show_progress
from refshard_fs.tools.trial import OpeningGuard
from refshard_fs.unpacking import unpack_in_blocks
from refshard_fs.xarray_store import TASK_SIZE, GroupStore

T = TypeVar("T", xr.Dataset, xr.DataArray)
logger = logging.getLogger(__package__)

# The options that say how xarray decodes.
_DECODING: Final = frozenset(inspect.signature(StoreBackendEntrypoint.open_dataset).parameters) - {
    "self",
    "filename_or_obj",
}

_NAMED: Final = 3  # the most parts that a warning names
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
        **options: Any,
    ) -> xr.Dataset:
        """Open one group as a Dataset that reads values when they are used."""
        self._check_names(options)
        options["drop_variables"] = drop_variables
        options |= open_dataset_options or {}
        path = _find_group(filename_or_obj, storage_options, options)
        with _begin_opening(_make_filesystem(filename_or_obj, storage_options, path), options) as opening:
            group = opening.read_groups(path, is_deep=False)[path]
            if open_dataset_options:  # only xr.open_dataset takes some of them, such as chunks and decode_cf
                engine_names = self.open_dataset_parameters
                arguments = {
                    name: value for name, value in options.items() if name not in engine_names or name in _DECODING
                }
                ds = xr.open_dataset(opening.make_store(group), engine="store", **arguments)
                unpack_in_blocks(ds.variables.values())
                return ds
            ds = opening.make_dataset(group)
            _load_coordinates([ds])
        if not ds.variables:
            _warn_of_groups(group)
        return ds

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open all groups as a DataTree, with the options of `open_groups_as_dict`.

        xarray raises ValueError if the coordinates of a group do not fit those of its parent.
        """
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def open_groups_as_dict(
        self, filename_or_obj: Any, *, storage_options: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, xr.Dataset]:
        """Open each group as a Dataset; return them by path.

        Paths are relative to ``group``; without this option, they begin with "/".
        """
        self._check_names(options)
        root = _find_group(filename_or_obj, storage_options, options)
        top = PurePosixPath("." if root or options.get("group") else "/")
        with _begin_opening(_make_filesystem(filename_or_obj, storage_options, root), options) as opening:
            groups = {
                str(top / make_relative(path, root)): opening.make_dataset(group)
                for path, group in opening.read_groups(root, is_deep=True).items()
            }
            _load_coordinates(groups.values())
        return groups

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether ``filename_or_obj`` is a ``refshard`` URL, without reading it: xarray asks every engine."""
        url = filename_or_obj
        return isinstance(url, str) and (url.startswith(("refshard://", "refshard::")) or url.endswith("|refshard:"))

    def _check_names(self, options: Iterable[str]) -> None:
        """Raise TypeError if an option is not one of xarray's zarr engine; most often, it belongs to the source."""
        for name in options:
            if name not in self.open_dataset_parameters:
                near = difflib.get_close_matches(name, self.open_dataset_parameters, 1)
                from refshard_fs.sets.concat import IN_XARRAY  # only for this error
                from refshard_fs.source.options import list_keywords

                if name in IN_XARRAY:
                    hint = f", as xarray.open_mfdataset has: {IN_XARRAY[name]}"
                elif near and name not in list_keywords():
                    hint = f": did you mean {near[0]}=?"
                else:
                    hint = f". Pass options of the source as storage_options={{{name!r}: ...}}"
                raise TypeError(f"engine='refshard' has no argument {name!r}{hint}")


class _Opening:
    """Open groups of one source, with the options of one call of the engine."""

    def __init__(self, fs: RefShardFileSystem, options: Mapping[str, Any], guard: OpeningGuard | None) -> None:
        self._fs, self._options, self._guard = fs, options, guard

    def read_groups(self, path: str, *, is_deep: bool) -> dict[str, GroupNode]:
        """Read the metadata of a group, and with ``is_deep`` of all groups below it; return them by path."""
        source, consolidated = self._fs.source, self._options.get("consolidated")
        if consolidated is None:
            consolidated = self._can_consolidate(path)
        zarr_format = self._options.get("zarr_format")
        options: dict[str, Any] = {"consolidated": consolidated, "zarr_format": zarr_format, "is_deep": is_deep}
        # A hierarchy recalls the documents that it read when it was opened only once.
        found = read_groups_now(source, path, **options) if consolidated and source.open().url_of is None else None
        return source.wait(partial(read_groups, source, path, **options)) if found is None else found

    def _can_consolidate(self, path: str) -> bool:
        """Return whether to read the root's consolidated metadata, which saves one or more requests for each array.

        False if the root has none, and for a group below the root of a zarr hierarchy.
        """
        source = self._fs.source
        if source.transaction is not None:  # uncommitted writes may change an array's metadata alone
            return False
        keyspace = source.open()
        return keyspace.consolidates and (not path or not keyspace.is_hierarchy)

    def make_store(self, group: GroupNode) -> GroupStore:
        """Return xarray's store of a group; log a warning of parts that are left out."""
        dropped = self._options.get("drop_variables") or ()
        _log_left_out(self._fs, group)
        return GroupStore(
            self._fs,
            group,
            fill_value_is_mask=self._options.get("use_zarr_fill_value_as_mask"),
            task_size=self._options.get("task_size", TASK_SIZE),
            not_loaded={dropped} if isinstance(dropped, str) else set(dropped),
            load_together=_load_together,
            guard=self._guard,
        )

    def make_dataset(self, group: GroupNode) -> xr.Dataset:
        """Return the dataset of a group, decoded."""
        decoding = {name: value for name, value in self._options.items() if name in _DECODING}
        ds = StoreBackendEntrypoint().open_dataset(self.make_store(group), **decoding)
        unpack_in_blocks(ds.variables.values())
        return ds


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
    with show_progress("load", callback) as counter:
        counter.set_size(len(variables))
        _load_together(variables, counter.relative_update)
    return ds.load()  # this loads the variables of dask


def _load_coordinates(groups: Iterable[xr.Dataset]) -> None:
    """Load all index coordinates together; xarray would load one after the other, to make its indexes."""
    named = [pair for ds in groups for pair in ds.variables.items()]
    coordinates = [variable for name, variable in named if variable.dims == (name,)]
    _load_together(coordinates)
    if GUARD.get() is not None:
        for variable in coordinates:  # also those that `_load_together` has left out have to stay within the limit
            variable.load()


@contextlib.contextmanager
def _begin_opening(fs: RefShardFileSystem, options: Mapping[str, Any]) -> Iterator[_Opening]:
    """Yield an opening of ``fs``; in the ``with`` block, decoding is limited unless the source is the user's own."""
    fs.source.open()  # only an open source has `is_own`
    guard = None if fs.source.is_own else OpeningGuard()
    token = GUARD.set(None if guard is None else guard.check)
    try:
        yield _Opening(fs, options, guard)
    finally:
        GUARD.reset(token)


def _is_in_memory(variable: xr.Variable) -> bool:
    """Return whether loading ``variable`` reads nothing. xarray has no public name for this: without its own, False."""
    return bool(getattr(variable, "_in_memory", False))


def _load_together(variables: Iterable[xr.Variable], on_progress: Callable[[int], object] | None = None) -> None:
    """Load ``variables`` at the same time, but not those in dask, nor those that xarray cannot load asynchronously."""
    variables = list(variables)
    if not hasattr(xr.Variable, "load_async"):  # an old xarray
        return
    if GUARD.get() is None:
        for variable in variables:
            array = None if _is_in_memory(variable) else find_direct_array(variable)
            if array is not None and array.is_near:  # an event loop would take longer than the read
                variable.load()
    if on_progress is None and all(_is_in_memory(variable) or variable.chunks is not None for variable in variables):
        return

    async def load_variable(variable: xr.Variable) -> None:
        if not _is_in_memory(variable) and variable.chunks is None:
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

    wait(load_all)


def _warn_of_groups(group: GroupNode) -> None:
    """Warn that a group has no arrays, and name the groups in it; do nothing if it has no groups."""
    if group.groups:
        names = sorted(group.groups)
        warnings.warn(
            f"{group.path or 'the root group'} has no variables, but it has groups: {', '.join(names[:8])}"
            f"{' ...' if len(names) > 8 else ''}. Open one with group={join(group.path, names[0])!r}, or all with "
            "xarray.open_datatree",
            UserWarning,
            stacklevel=4,
        )


def _log_left_out(fs: RefShardFileSystem, group: GroupNode) -> None:
    """Log a warning that names the parts of a group that cannot be shown, with the reasons."""
    shown = group.arrays.keys() | set(group.groups)
    left_out = {path: reason for path, reason in fs.left_whole.items() if parent(path)[0] == group.path and path}
    texts = [f"{path!r} ({reason})" for path, reason in sorted(left_out.items()) if parent(path)[1] not in shown]
    if texts:
        more = f"; and {format_count(len(texts) - _NAMED, 'other')}" if len(texts) > _NAMED else ""
        logger.warning("%s is opened without %s", sanitize(str(fs.fo)), sanitize("; ".join(texts[:_NAMED])) + more)


def _find_group(source: Any, storage_options: Mapping[str, Any] | None, options: Mapping[str, Any]) -> str:
    """Return the path of the group to open: the engine's ``group=``, or else the option ``group`` of the source."""
    opened_with = source.storage_options if isinstance(source, RefShardFileSystem) else {}
    for given in (options, storage_options or {}, opened_with):
        if isinstance(given.get("group"), str):
            return str(given["group"]).strip("/")
    return ""


def _make_filesystem(source: Any, storage_options: Mapping[str, Any] | None, group: str) -> RefShardFileSystem:
    """Return the filesystem of ``source``, of which only ``group`` is used; all of it if ``group`` is empty."""
    options = dict(storage_options or {})
    if zarr_major() != 2:  # zarr 3 takes only asynchronous filesystems, if it has to read an array
        options["asynchronous"] = True
    if isinstance(source, RefShardFileSystem):  # a copy shares the open source
        return type(source)(*source.storage_args, **{**source.storage_options, **options})
    if group:
        options.setdefault("group", group)
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

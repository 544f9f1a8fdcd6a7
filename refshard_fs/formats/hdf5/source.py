"""Open HDF5 files as zarr hierarchies, and look up their keys. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace, LookUp, find_chunk
from refshard_fs.core.model import Inline, Span, Steps, together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.netcdf4 import describe, split_compounds
from refshard_fs.formats.hdf5.objects import read_tree
from refshard_fs.formats.hdf5.structure import HDF5Object, Superblock, Virtual, parse_superblock
from refshard_fs.formats.hdf5.virtual import (
    MOST_FILES,
    OWN,
    VirtualChunks,
    check_is_beside,
    list_source_files,
    resolve_mappings,
)
from refshard_fs.security.policy import directory_of, relative_to

PREPARED: Final = 256  # most coordinates that are read when a file is opened
SOURCE: Final = 1000  # depth of the files of virtual datasets' sources: their own sources are not opened
FEW: Final = 32  # datasets, up to which the first node of each index is read on opening: some 3 KiB each


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an HDF5 file."""
    url = probe.url
    _, size = probe.file("HDF5")
    source = Inline(probe.head) if probe.is_in_memory else Span(url, 0, size)
    file = MetadataFile(source, size, probe.head)
    try:
        superblock = parse_superblock(file, probe.head)
        superblock, (objects, reports) = yield from file.run(read_tree(file, superblock))
        others = yield from _open_other_files(list_source_files(objects), probe, options)
        keyspace = _make_keyspace(file, superblock, objects, reports, url, options.zarr_format, others)
    except RefShardError as e:
        if isinstance(e, ManifestError) and url not in str(e):
            raise ManifestError(f"{url}: {e}") from e
        raise
    except ValueError as e:
        raise DamagedIndex("", url, str(e)) from e
    file.forget()
    yield from keyspace.prepare()
    return keyspace


class HDF5KeySpace(ArrayGroup):
    """The keys of a file; all keys of one dataset are looked up together."""

    _chunks: Mapping[str, DatasetChunks]

    def prepare(self) -> Steps[None]:
        """Read what most users need next, in as many rounds as one dataset takes."""
        coordinates = [chunks for chunks in self._chunks.values() if chunks.is_small_coordinate]
        others = [chunks for chunks in self._chunks.values() if not chunks.is_small_coordinate]
        first = [*coordinates[:PREPARED], *(others if len(others) <= FEW else [])]
        try:
            yield from together([chunks.prepare() for chunks in first])
        except (RefShardError, ValueError, OSError):
            pass  # a read of the dataset raises the same error; other datasets can be read

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        found: list[LookUp] = []
        by_array: dict[str, tuple[list[int], list[int]]] = {}
        for number, key in enumerate(keys):
            at = None if key in self._documents else find_chunk(self.grids, key)
            if at is None:
                found.append(self.single_lookup(number, key))
            else:
                places, numbers = by_array.setdefault(at.array, ([], []))
                places.append(number)
                numbers.append(at.number)
        for path, (places, numbers) in by_array.items():
            found.append(LookUp(places, self._chunks[path].entries(numbers)))
        return found


def _open_other_files(names: Sequence[str], probe: Probe, options: OpenOptions) -> Steps[dict[str, KeySpace | str]]:
    """Open the files beside this one that virtual datasets refer to, or return why a file cannot be opened."""
    if options.depth >= SOURCE or options.open_other is None or probe.is_in_memory:
        return dict.fromkeys(names, "files beside this one cannot be opened here")
    some = names[:MOST_FILES]
    found = yield from together([_open_other_file(name, probe.url, options) for name in some])
    return dict(zip(some, found, strict=True))


def _open_other_file(name: str, url: str, options: OpenOptions) -> Steps[KeySpace | str]:
    theirs = msgspec.structs.replace(options, depth=SOURCE, base_url=None, shards="whole")
    assert options.open_other is not None
    try:
        check_is_beside(name)
        return (yield from options.open_other(relative_to(directory_of(url), name), theirs))
    except (RefShardError, OSError) as e:
        return f"its source {name!r} cannot be opened: {e}"


def _make_keyspace(
    file: MetadataFile,
    superblock: Superblock,
    objects: Mapping[str, HDF5Object],
    reports: dict[str, str],
    url: str,
    zarr_format: int,
    other_files: Mapping[str, KeySpace | str],
) -> HDF5KeySpace:
    """Make the key space of the ``objects``. Report each object that cannot be shown."""
    objects = split_compounds(objects)
    paths = {found.address: f"/{path}" for path, found in objects.items()}
    variables, groups, unshown, unlimited, dtypes = describe(objects, zarr_format, paths)
    reports |= unshown
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, DatasetChunks] = {}

    def find_source(name: str, path: str) -> DatasetChunks:
        space = other_files.get(name, f"its virtual datasets name more than {MOST_FILES} files")
        if isinstance(space, str) and name != OWN:
            raise ManifestError(space)
        there = chunks if name == OWN else space._chunks if isinstance(space, HDF5KeySpace) else {}
        if path.strip("/") not in there:
            raise ManifestError(f"it is a virtual dataset, and its source {path!r} in {name!r} cannot be shown")
        return there[path.strip("/")]

    for path in sorted(variables, key=lambda path: isinstance(objects[path].layout, Virtual)):  # last
        variable, found = variables[path], objects[path]
        try:
            found, parts = resolve_mappings(found, find_source)
            dataset = Dataset(found, variable)
            array = dataset.description()
            list(array.metadata(zarr_format))  # raises if zarr cannot hold such an array in this format
            how = file, superblock, dataset, array.grid(zarr_format), url
            chunks[variable.path] = VirtualChunks(*how, parts) if parts else DatasetChunks(*how, paths)
            arrays[variable.path] = array
        except ValueError as e:
            reports[path] = str(e)
    in_order = [variables[path].path for path in sorted(variables, key=lambda path: objects[path].order)]
    arrays = {path: arrays[path] for path in in_order if path in arrays}
    others = {path: attributes for path, attributes in groups.items() if path}
    space = HDF5KeySpace(arrays, chunks, zarr_format, groups.get("", {}), reports, groups=others)
    space.unlimited_dimensions = unlimited
    space.attribute_dtypes = {path: some for path, some in dtypes.items() if some}
    return space

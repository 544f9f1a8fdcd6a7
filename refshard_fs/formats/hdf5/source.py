"""Open HDF5 files as zarr hierarchies, and look up their keys. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace, LookUp
from refshard_fs.core.model import Inline, Span, Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks
from refshard_fs.formats.hdf5.external import (
    MOST_TEXT,
    SHOWN,
    DimensionNames,
    ExternalLink,
    LinkedPaths,
    check_is_beside,
    resolve_files,
)
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.netcdf4 import describe, split_compounds
from refshard_fs.formats.hdf5.objects import Tree, read_tree
from refshard_fs.formats.hdf5.structure import Superblock, Virtual, parse_superblock
from refshard_fs.formats.hdf5.virtual import OWN, VirtualChunks, list_source_files, resolve_mappings
from refshard_fs.security.policy import directory_of, relative_to

PREPARED: Final = 256  # most coordinates that are read when a file is opened
OTHER: Final = 1000  # depth of a file that this one refers to
DEEPEST: Final = 1  # levels of files that such a file may refer to in turn
# Each file may refer to this number of others, which are opened; at each level below, to a hundredth of it.
MOST_FILES: Final = 1000
TOO_MANY: Final = f"the file refers to more than {MOST_FILES} others"
FEW: Final = 32  # datasets, up to which the first node of each index is read on opening: some 3 KiB each


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an HDF5 file."""
    url = probe.url
    _, size = probe.file("HDF5")
    source = Inline(probe.head) if probe.is_in_memory else Span(url, 0, size)
    file = MetadataFile(source, size, probe.head)
    try:
        superblock = parse_superblock(file, probe.head)
        superblock, tree = yield from file.run(read_tree(file, superblock))
        names = dict.fromkeys([*list_source_files(tree.objects), *(link.file for link in tree.external.values())])
        others = yield from _open_other_files(list(names), probe, options)
        keyspace = _make_keyspace(file, superblock, tree, probe, options, others)
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
    arrays: Mapping[str, ArrayDescription] = {}  # arrays by path; empty unless another file refers to this one

    @cached_property
    def linked_paths(self) -> LinkedPaths:
        """The paths of all objects, for external links to them."""
        return LinkedPaths([*self.arrays, *self._groups, *self.reports])

    def prepare(self) -> Steps[None]:
        """Read what most users need next, in as many rounds as one dataset takes."""
        coordinates = [chunks for chunks in self._chunks.values() if chunks.is_small_coordinate]
        others = [chunks for chunks in self._chunks.values() if not chunks.is_small_coordinate]
        first = [*coordinates[:PREPARED], *(others if len(others) <= FEW else [])]
        try:
            yield from run_together([chunks.prepare() for chunks in first])
        except (RefShardError, ValueError, OSError):
            pass  # a read of the dataset raises the same error; other datasets can be read

    def lookups(self, keys: Sequence[str]) -> list[LookUp]:
        others, chunks = self.group_by_array(keys)
        found = [self.single_lookup(place, keys[place]) for place in others]
        for path, pairs in chunks.items():
            places, numbers = zip(*pairs, strict=True)
            found.append(LookUp(places, self._chunks[path].entries(numbers)))
        return found


def _open_other_files(names: Sequence[str], probe: Probe, options: OpenOptions) -> Steps[dict[str, KeySpace | str]]:
    """Open the files beside this one that are referred to, or return why a file cannot be opened."""
    level = max(options.depth - OTHER + 1, 0)
    if level > DEEPEST:
        return dict.fromkeys(names, "it is named by a file that a file names: such files are not opened")
    if options.open_other is None or probe.is_in_memory:
        return dict.fromkeys(names, "files beside this one cannot be opened here")
    some = names[: MOST_FILES // 100**level]
    found = yield from run_together([_open_other_file(name, probe.url, options) for name in some])
    return dict(zip(some, found, strict=True))


def _open_other_file(name: str, url: str, options: OpenOptions) -> Steps[KeySpace | str]:
    depth = max(options.depth + 1, OTHER)
    theirs = msgspec.structs.replace(options, depth=depth, base_url=None, shards="whole")
    assert options.open_other is not None
    try:
        check_is_beside(name)
    except ManifestError as e:
        return str(e)
    try:
        return (yield from options.open_other(relative_to(directory_of(url), name), theirs))
    except (RefShardError, OSError) as e:
        return f"{name[:SHOWN]!r} cannot be opened: {e}"


def _make_keyspace(
    file: MetadataFile,
    superblock: Superblock,
    tree: Tree,
    probe: Probe,
    options: OpenOptions,
    other_files: Mapping[str, KeySpace | str],
) -> HDF5KeySpace:
    """Make the key space of a file. Report each object that cannot be shown."""
    url, reports, objects = probe.url, tree.reports, split_compounds(tree.objects)
    zarr_format = options.zarr_format
    directory = None if probe.is_in_memory else directory_of(url)
    paths = {found.address: f"/{path}" for path, found in objects.items()}
    variables, groups, unshown, unlimited, dtypes = describe(objects, zarr_format, paths)
    reports |= unshown
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, DatasetChunks] = {}

    def find_source(name: str, path: str) -> DatasetChunks:
        space = other_files.get(name, TOO_MANY)
        if isinstance(space, str) and name != OWN:
            raise ManifestError(f"it is a virtual dataset, and its source {space}")
        there = chunks if name == OWN else space._chunks if isinstance(space, HDF5KeySpace) else {}
        if path.strip("/") not in there:
            raise ManifestError(f"it is a virtual dataset, and its source {path!r} in {name!r} cannot be shown")
        return there[path.strip("/")]

    for path in sorted(variables, key=lambda path: isinstance(objects[path].layout, Virtual)):  # last
        variable, found = variables[path], objects[path]
        try:
            found, parts = resolve_mappings(found, find_source)
            dataset = Dataset(resolve_files(found, directory), variable)
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
    whole = _Shown(arrays, chunks, others, dict(unlimited), dict(dtypes), reports)
    dimensions, left = DimensionNames(arrays), MOST_TEXT
    for place, link in tree.external.items():
        try:
            there = _find_linked(link, other_files)
            shown = there.linked_paths.find(link, place)
            size = sum(map(len, shown.values()))
            if not shown or size > left:
                why = f"the paths of linked objects have more than {MOST_TEXT} characters"
                raise ManifestError(why if shown else "there is no such object")
            left -= size
            whole.add(there, shown, dimensions)
        except ManifestError as e:
            reports[place] = f"{link}: {e}"
    space = HDF5KeySpace(arrays, chunks, zarr_format, groups.get("", {}), reports, groups=others)
    space.unlimited_dimensions = whole.unlimited
    space.attribute_dtypes = {path: some for path, some in whole.dtypes.items() if some}
    space.arrays = arrays if options.depth >= OTHER else {}
    return space


class _Shown(NamedTuple):
    """All that is shown of a file, by path."""

    arrays: dict[str, ArrayDescription]
    chunks: dict[str, DatasetChunks]
    groups: dict[str, Mapping[str, Any]]
    unlimited: dict[str, Sequence[str]]
    dtypes: dict[str, Mapping[str, str]]
    reports: dict[str, str]

    def add(self, there: HDF5KeySpace, shown: Mapping[str, str], dimensions: DimensionNames) -> None:
        """Add objects of another file, by their paths there and here."""
        for path, ours in shown.items():
            if path in there.arrays:
                self.arrays[ours] = dimensions.move(there.arrays[path], ours)
                self.chunks[ours] = there._chunks[path]
            elif path in there._groups:
                self.groups[ours] = there._groups[path]
                self.unlimited[ours] = there.unlimited_dimensions.get(path, ())
            if path in there.reports:
                self.reports[ours] = there.reports[path]
            self.dtypes[ours] = there.attribute_dtypes.get(path, {})


def _find_linked(link: ExternalLink, others: Mapping[str, KeySpace | str]) -> HDF5KeySpace:
    """Return the file that a link leads to. Raise ManifestError if it cannot be opened."""
    there = others.get(link.file, TOO_MANY)
    if not isinstance(there, HDF5KeySpace):
        raise ManifestError(there if isinstance(there, str) else f"{link.file[:SHOWN]!r} is not an HDF5 file")
    return there

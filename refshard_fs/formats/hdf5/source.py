"""Open HDF5 files as zarr hierarchies, and look up their keys. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Span, Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks
from refshard_fs.formats.hdf5.external import (
    MOST_TEXT,
    SHOWN,
    DimensionNames,
    ExternalLink,
    LinkedPaths,
    check_file_is_beside,
    resolve_files,
)
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.netcdf4 import describe, split_compounds
from refshard_fs.formats.hdf5.objects import Tree, read_tree
from refshard_fs.formats.hdf5.part import is_self_contained
from refshard_fs.formats.hdf5.structure import Superblock, VirtualLayout, parse_superblock
from refshard_fs.formats.hdf5.virtual import OWN, list_source_files, make_virtual_chunks, resolve_mappings
from refshard_fs.security.policy import directory_of, relative_to

MOST_PREPARED: Final = 256  # the most small coordinates that are read when a file is opened
# `OpenOptions.depth` of a file to which the opened file refers; files to which that file refers have 1 more.
OTHER_DEPTH: Final = 1000
MOST_LEVELS: Final = 1  # files to which the opened file refers may refer to more files, but these may not
MOST_FILES: Final = 1000  # files that are opened for the opened file; for each of these files, a hundredth of this
TOO_MANY: Final = (
    f"only the first {MOST_FILES} files to which the opened file refers are opened, "
    f"and {MOST_FILES // 100} files to which each of these refers"
)
NOT_OPENED: Final = "other files can be opened only if this file is opened by its path or URL, not as bytes"
# The first block of each chunk index, some 3 KiB, is read on opening if at most this number of datasets are not small.
MOST_PREPARED_INDEXES: Final = 32


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open an HDF5 file, and the files to which it refers."""
    url = probe.url
    _, size = probe.file("HDF5 file")
    source = Inline(probe.head) if probe.is_in_memory else Span(url, 0, size)
    file = MetadataFile(source, size, probe.head)
    try:
        superblock = parse_superblock(file, probe.head)
        superblock, tree = yield from file.run(read_tree(file, superblock, options.group, is_self_contained))
        names = dict.fromkeys([*list_source_files(tree.objects), *(link.file for link in tree.external.values())])
        other_files = yield from _open_other_files(list(names), probe, options)
        keyspace = _make_keyspace(file, superblock, tree, probe, options, other_files)
    except RefShardError as e:
        if isinstance(e, ManifestError) and url not in str(e):
            raise ManifestError(f"{url}: {e}") from e
        raise
    except ValueError as e:
        raise DamagedIndex("", url, str(e)) from e
    file.drop_pages()
    yield from keyspace.prepare()
    return keyspace


class HDF5KeySpace(ArrayGroup):
    """The keys of a file; all keys of one dataset are looked up together."""

    chunks_by_path: Mapping[str, DatasetChunks]
    arrays: Mapping[str, ArrayDescription] = {}  # by path; set only if this file was opened for another file

    @cached_property
    def linked_paths(self) -> LinkedPaths:
        """The paths of all objects. External links of other files lead to them."""
        return LinkedPaths([*self.arrays, *self.group_attributes, *self.reports])

    def prepare(self) -> Steps[None]:
        """Read small coordinates and the first blocks of chunk indexes, in as many rounds as one dataset takes."""
        coordinates = [chunks for chunks in self.chunks_by_path.values() if chunks.is_small_coordinate]
        other_chunks = [chunks for chunks in self.chunks_by_path.values() if not chunks.is_small_coordinate]
        prepared = [*coordinates[:MOST_PREPARED], *(other_chunks if len(other_chunks) <= MOST_PREPARED_INDEXES else [])]
        try:
            yield from run_together([chunks.prepare() for chunks in prepared])
        except (RefShardError, ValueError, OSError):
            pass  # a read of the dataset raises the same error; other datasets can be read


def _open_other_files(names: Sequence[str], probe: Probe, options: OpenOptions) -> Steps[dict[str, KeySpace | str]]:
    """Open the files ``names``. Return the key space of each, or the reason why it cannot be opened."""
    level = max(options.depth - OTHER_DEPTH + 1, 0)
    if level > MOST_LEVELS:
        most = MOST_LEVELS + 1
        return dict.fromkeys(names, f"expected a chain of at most {most} files after the opened file, found one more")
    if options.open_other is None or probe.is_in_memory:
        return dict.fromkeys(names, NOT_OPENED)
    opened_names = names[: MOST_FILES // 100**level]
    results = yield from run_together([_open_other_file(name, probe.url, options) for name in opened_names])
    return dict(zip(opened_names, results, strict=True))


def _open_other_file(name: str, url: str, options: OpenOptions) -> Steps[KeySpace | str]:
    depth = max(options.depth + 1, OTHER_DEPTH)
    other_options = msgspec.structs.replace(options, depth=depth, base_url=None, shards="whole")
    assert options.open_other is not None
    try:
        check_file_is_beside(name)
    except ManifestError as e:
        return str(e)
    try:
        return (yield from options.open_other(relative_to(directory_of(url), name), other_options))
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
    paths = {hdf5_object.address: f"/{path}" for path, hdf5_object in objects.items()}
    variables, groups, unshown, unlimited, dtypes = describe(objects, zarr_format, paths)
    reports |= unshown
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, DatasetChunks] = {}

    def find_source(name: str, path: str) -> DatasetChunks:
        space = other_files.get(name, TOO_MANY)
        if isinstance(space, str) and name != OWN:
            raise ManifestError(f"it is a virtual dataset with values of another file: {space}")
        other_space = chunks if name == OWN else space.chunks_by_path if isinstance(space, HDF5KeySpace) else {}
        if path.strip("/") not in other_space:
            where = "this file" if name == OWN else repr(name[:SHOWN])
            found = f"it is a virtual dataset with the source {path!r} in {where}"
            raise ManifestError(f"{found}: expected a dataset there that can be shown, found none")
        return other_space[path.strip("/")]

    # Virtual datasets come last: they need the chunks of other datasets.
    for path in sorted(variables, key=lambda path: isinstance(objects[path].layout, VirtualLayout)):
        variable, hdf5_object = variables[path], objects[path]
        try:
            hdf5_object, sources = resolve_mappings(hdf5_object, find_source)
            dataset = Dataset(resolve_files(hdf5_object, directory), variable)
            array = dataset.describe()
            list(array.make_metadata(zarr_format))  # raises if ``zarr_format`` cannot hold the array
            arguments = file, superblock, dataset, array.grid(zarr_format), url
            chunks[variable.path] = (
                make_virtual_chunks(*arguments, sources) if sources else DatasetChunks(*arguments, paths)
            )
            arrays[variable.path] = array
        except ValueError as e:
            reports[path] = str(e)
    in_order = [variables[path].path for path in sorted(variables, key=lambda path: objects[path].order)]
    arrays = {path: arrays[path] for path in in_order if path in arrays}
    other_groups = {path: attributes for path, attributes in groups.items() if path}
    contents = _FileContents(arrays, chunks, other_groups, dict(unlimited), dict(dtypes), reports)
    dimensions, room = DimensionNames(arrays), MOST_TEXT
    for path_here, link in tree.external.items():
        try:
            other_space = _get_linked_file(link, other_files)
            paths_here = other_space.linked_paths.find(link, path_here)
            size = sum(map(len, paths_here.values()))
            if not paths_here or size > room:
                reason = f"the paths of all linked objects have too many characters: expected at most {MOST_TEXT}"
                raise ManifestError(reason if paths_here else "expected an object there, found none")
            room -= size
            contents.add(other_space, paths_here, dimensions)
        except ManifestError as e:
            reports[path_here] = f"{link}: {e}"
    space = HDF5KeySpace(arrays, chunks, zarr_format, groups.get("", {}), reports, groups=other_groups)
    space.unlimited_dimensions = contents.unlimited
    space.attribute_dtypes = {
        path: attribute_dtypes for path, attribute_dtypes in contents.dtypes.items() if attribute_dtypes
    }
    space.arrays = arrays if options.depth >= OTHER_DEPTH else {}
    return space


class _FileContents(NamedTuple):
    """The objects of a file that are shown, by path, and the reasons why other objects are not shown."""

    arrays: dict[str, ArrayDescription]
    chunks: dict[str, DatasetChunks]
    groups: dict[str, Mapping[str, Any]]
    unlimited: dict[str, Sequence[str]]
    dtypes: dict[str, Mapping[str, str]]
    reports: dict[str, str]

    def add(self, other_space: HDF5KeySpace, paths: Mapping[str, str], dimensions: DimensionNames) -> None:
        """Add objects of another file. ``paths`` maps their paths in that file to the paths at which they are shown."""
        for path, path_here in paths.items():
            if path in other_space.arrays:
                self.arrays[path_here] = dimensions.move_array(other_space.arrays[path], path_here)
                self.chunks[path_here] = other_space.chunks_by_path[path]
            elif path in other_space.group_attributes:
                self.groups[path_here] = other_space.group_attributes[path]
                self.unlimited[path_here] = other_space.unlimited_dimensions.get(path, ())
            if path in other_space.reports:
                self.reports[path_here] = other_space.reports[path]
            self.dtypes[path_here] = other_space.attribute_dtypes.get(path, {})


def _get_linked_file(link: ExternalLink, other_files: Mapping[str, KeySpace | str]) -> HDF5KeySpace:
    """Return the key space of the file to which a link leads. Raise ManifestError if the file could not be opened."""
    other_space = other_files.get(link.file, TOO_MANY)
    if not isinstance(other_space, HDF5KeySpace):
        raise ManifestError(
            other_space if isinstance(other_space, str) else f"{link.file[:SHOWN]!r}: expected an HDF5 file"
        )
    return other_space

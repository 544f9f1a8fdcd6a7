"""Open HDF5 files as zarr hierarchies, and look up their keys. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.array_group import ArrayDescription, ArrayGroup
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Inline, Span, Stat, Steps, run_together
from refshard_fs.errors import DamagedIndex, ManifestError, RefShardError
from refshard_fs.formats.hdf5.datasets import Dataset, DatasetChunks, OpenedFile
from refshard_fs.formats.hdf5.external import (
    MOST_TEXT,
    SHOWN,
    DimensionNames,
    ExternalLink,
    LinkedPaths,
    locate_beside,
    resolve_files,
)
from refshard_fs.formats.hdf5.file import MetadataFile
from refshard_fs.formats.hdf5.netcdf4 import describe, split_compounds
from refshard_fs.formats.hdf5.objects import Tree, read_tree
from refshard_fs.formats.hdf5.part import is_self_contained
from refshard_fs.formats.hdf5.structure import Superblock, parse_superblock
from refshard_fs.formats.hdf5.virtual import (
    OWN,
    VIRTUAL,
    SourceDatasets,
    list_source_files,
    make_virtual_chunks,
    number_name,
    resolve_extents,
    resolve_mappings,
)
from refshard_fs.security.policy import directory_of

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
        names, numbered = list_source_files(tree.objects)
        names += [link.file for link in tree.external.values()]
        other_files = yield from _open_other_files(list(dict.fromkeys(names)), numbered, probe, options)
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

    unwraps_single_values = True  # as h5netcdf does
    chunks_by_path: Mapping[str, DatasetChunks]
    # These are set only if this file was opened for another file.
    arrays: Mapping[str, ArrayDescription] = {}  # by path
    datasets: SourceDatasets

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


class _OtherFiles(NamedTuple):
    """The files to which a file refers, by name: the key space, the reason why it cannot be opened, or None.

    None means that the file does not exist. ``reason`` says why other files are not opened.
    """

    opened: dict[str, KeySpace | str | None]
    reason: str

    def get(self, name: str) -> KeySpace | str | None:
        """Return what ``opened`` has for ``name``; ``reason`` if the file was not opened."""
        return self.opened.get(name, self.reason)


def _open_other_files(
    names: Sequence[str], numbered: Sequence[str], probe: Probe, options: OpenOptions
) -> Steps[_OtherFiles]:
    """Open the files ``names``. Of ``numbered`` names, open the files 0, 1, 2 and so on, until one does not exist."""
    level = max(options.depth - OTHER_DEPTH + 1, 0)
    if level > MOST_LEVELS:
        most = MOST_LEVELS + 1
        return _OtherFiles({}, f"expected a chain of at most {most} files after the opened file, found one more")
    if options.open_other is None or probe.is_in_memory:
        return _OtherFiles({}, NOT_OPENED)
    files, most = _OtherFiles({}, TOO_MANY), MOST_FILES // 100**level

    def open_new(batch: Sequence[str]) -> Steps[None]:
        new = [name for name in batch if name not in files.opened][: most - len(files.opened)]
        try:
            results = yield from run_together([_open_other_file(name, probe.url, options) for name in new])
        except TimeoutError:
            raise
        except (RefShardError, OSError) as e:  # a request for one of the files fails: find out which
            if len(new) == 1:
                results = [_describe_failure(new[0], e)]
            else:
                yield from open_new(new[: len(new) // 2])
                yield from open_new(new[len(new) // 2 :])
                return
        files.opened.update(zip(new, results, strict=True))

    yield from open_new(names)
    for name in numbered:
        count, are_all_there = 0, True
        while are_all_there and len(files.opened) < most:
            batch = [number_name(name, number) for number in range(count, 2 * count + 4)]
            existing = yield from _list_existing(batch, probe.url)
            yield from open_new(existing)
            count += len(batch)
            if len(existing) < len(batch):
                files.opened[batch[len(existing)]] = None
            are_all_there = all(isinstance(files.get(name), HDF5KeySpace) for name in batch)
    return files


def _list_existing(names: Sequence[str], url: str) -> Steps[Sequence[str]]:
    """Return the names before the first file that does not exist; all if this is not known."""
    try:
        found = yield tuple(Stat(locate_beside(name, url), fresh=True) for name in names)
    except (RefShardError, OSError):
        return names  # opening the files raises the errors
    return names[: next((number for number, facts in enumerate(found) if facts is None), len(names))]


def _open_other_file(name: str, url: str, options: OpenOptions) -> Steps[KeySpace | str | None]:
    depth = max(options.depth + 1, OTHER_DEPTH)
    other_options = msgspec.structs.replace(options, depth=depth, base_url=None, shards="whole")
    assert options.open_other is not None
    try:
        other_url = locate_beside(name, url)
    except ManifestError as e:
        return str(e)
    try:
        return (yield from options.open_other(other_url, other_options))
    except (RefShardError, OSError) as e:
        reason = _describe_failure(name, e)
    return None if (yield Stat(other_url, fresh=True)) is None else reason


def _describe_failure(name: str, error: Exception) -> str:
    return f"{name[:SHOWN]!r} cannot be opened: {error}"


def _make_keyspace(
    file: MetadataFile,
    superblock: Superblock,
    tree: Tree,
    probe: Probe,
    options: OpenOptions,
    other_files: _OtherFiles,
) -> HDF5KeySpace:
    """Make the key space of a file. Report each object that cannot be shown."""
    url, reports = probe.url, tree.reports
    datasets = SourceDatasets(tree.objects, [*reports, *tree.external])

    def find_source(name: str, path: str) -> DatasetChunks | None:
        if name == OWN:
            return datasets.find(path, "this file")
        space = other_files.get(name)
        if isinstance(space, HDF5KeySpace):
            return space.datasets.find(path, repr(name[:SHOWN]))
        if space is None:
            return None
        raise ManifestError(f"{VIRTUAL} with values of another file: {_describe_unopened(name, space)}")

    resolved, virtual = resolve_extents(tree.objects, find_source, datasets.find_path)
    objects = split_compounds(resolved)
    zarr_format = options.zarr_format
    directory = None if probe.is_in_memory else directory_of(url)
    paths = {hdf5_object.address: f"/{path}" for path, hdf5_object in objects.items()}
    variables, groups, unshown, unlimited, dtypes = describe(objects, zarr_format, paths)
    reports |= unshown
    arrays: dict[str, ArrayDescription] = {}
    chunks: dict[str, DatasetChunks] = {}
    opened = OpenedFile(file, superblock, url)
    # Virtual datasets come last: they need the chunks of other datasets.
    order = {path: number for number, path in enumerate(virtual)}
    for path in sorted(variables, key=lambda path: order.get(path, -1)):
        variable, hdf5_object = variables[path], objects[path]
        try:
            hdf5_object, mappings = resolve_mappings(hdf5_object, find_source)
            dataset = Dataset(resolve_files(hdf5_object, directory), variable)
            array = dataset.describe()
            list(array.make_metadata(zarr_format))  # raises if ``zarr_format`` cannot hold the array
            arguments = opened, dataset, array.grid(zarr_format)
            chunks[variable.path] = datasets.chunks[path] = (
                make_virtual_chunks(*arguments, mappings) if mappings else DatasetChunks(*arguments, paths)
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
            datasets.chunks |= {path: chunks[path] for path in paths_here.values() if path in chunks}
        except ManifestError as e:
            reports[path_here] = f"{link}: {e}"
    space = HDF5KeySpace(arrays, chunks, zarr_format, groups.get("", {}), reports, groups=other_groups)
    space.unlimited_dimensions = contents.unlimited
    space.attribute_dtypes = {
        path: attribute_dtypes for path, attribute_dtypes in contents.dtypes.items() if attribute_dtypes
    }
    if options.depth >= OTHER_DEPTH:
        space.arrays, space.datasets = arrays, datasets
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


def _get_linked_file(link: ExternalLink, other_files: _OtherFiles) -> HDF5KeySpace:
    """Return the key space of the file to which a link leads. Raise ManifestError if the file could not be opened."""
    other_space = other_files.get(link.file)
    if not isinstance(other_space, HDF5KeySpace):
        raise ManifestError(_describe_unopened(link.file, other_space))
    return other_space


def _describe_unopened(name: str, file: KeySpace | str | None) -> str:
    """Say why there is no HDF5 file with a name."""
    if isinstance(file, str):
        return file
    return f"{name[:SHOWN]!r} {'does not exist' if file is None else 'has another format'}: expected an HDF5 file"

"""Show a part of a source, or of several: some variables, other names, a range of elements. No I/O here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.chunks import ArrayChunks, Chunks, Contents, Numbers, make_column
from refshard_fs.core.keys import ChunkGrid, add_to_tree, find_nearest, is_within, join, make_relative, parent
from refshard_fs.core.keyspace import KeySpace, LookUp, View, by_name, make_lookups_of, merge_listings
from refshard_fs.core.model import Directories, Entry, Inline, Listed, Span, Steps, run_together
from refshard_fs.core.node_documents import LeavesOut
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.choose import choose
from refshard_fs.cubes.nodes import Node, collect_documents, group_by_node, parse_documents
from refshard_fs.cubes.recutting import Recut, Section, check_recut
from refshard_fs.cubes.sections import PieceArray, check_sections, join_sections
from refshard_fs.errors import ManifestError, NotListable

LISTED = 10_000_000  # the most names in a directory of chunks that are made while reading


class _Array(msgspec.Struct, frozen=True):
    """A shown array. ``source`` is its path in ``space``, and ``stored`` its grid there; ``grid`` is the shown grid.

    ``before`` has, for each axis, the number of the source's chunks before the first shown chunk. If the array is
    ``recut``, its chunks are joined from sections, and its elements begin at ``starts``. The source's axes in
    ``dropped``, along which there is one chunk, are not shown; `insert_dropped` adds them to coordinates.
    """

    space: KeySpace
    source: str
    stored: ChunkGrid | None
    grid: ChunkGrid | None
    before: tuple[int, ...] = ()
    recut: Recut | None = None
    starts: tuple[int, ...] = ()
    meta: ArrayMeta | None = None
    dropped: tuple[int, ...] = ()

    def insert_dropped(self, coords: Sequence[int], filling: int = 0) -> Sequence[int]:
        """Add the dropped axes to coordinates or counts along the shown axes, with the value ``filling``."""
        if not self.dropped:
            return coords
        left = iter(coords)
        return [filling if k in self.dropped else next(left) for k in range(len(coords) + len(self.dropped))]

    @property
    def counts(self) -> Sequence[int]:
        """The number of shown chunks along each axis of the source."""
        return () if self.grid is None else self.insert_dropped(self.grid.counts, 1)

    @property
    def is_whole(self) -> bool:
        """Whether all chunks are shown, with the same keys relative to the array as in the source."""
        return self.stored == self.grid and self.recut is None and not any(self.before)

    def find_source_numbers(self, numbers: Numbers) -> Numbers:
        """Convert numbers of shown chunks to their numbers in the source."""
        if self.is_whole or self.stored is None or not self.counts:
            return numbers
        coords = np.unravel_index(make_column(numbers).astype(np.int64), tuple(self.counts))
        there = [along + first for along, first in zip(coords, self.before, strict=True)]
        return np.asarray(np.ravel_multi_index(there, self.stored.counts), np.uint64)

    def renumber(self, chunks: ArrayChunks) -> ArrayChunks:
        """Return the shown chunks among the source's ``chunks``, with their shown numbers."""
        if self.is_whole or self.grid is None or not self.counts:
            return chunks
        if isinstance(chunks.numbers, np.ndarray):
            numbers = chunks.numbers
        else:
            numbers = np.concatenate([make_column(part) for part in chunks.numbers] or [np.zeros(0, np.uint64)])
        coords = np.unravel_index(numbers.astype(np.int64), chunks.grid.counts)
        shown = np.array([along - first for along, first in zip(coords, self.before, strict=True)])
        counts = np.array(self.counts)[:, None]
        is_shown = ((shown >= 0) & (shown < counts)).all(axis=0)
        if self.grid.size:
            placed = np.asarray(np.ravel_multi_index(tuple(shown[:, is_shown]), tuple(self.counts)), np.uint64)
        else:
            placed = np.zeros(0, np.uint64)
        sizes = None if chunks.sizes is None else chunks.sizes[is_shown]
        return ArrayChunks(self.grid, placed, sizes, chunks.pins_chunks)


class Selection(View):
    """A part of ``base``, chosen by a `Choice`; or several sources together. Keys outside of nodes are not shown.

    ``nodes`` are the shown arrays and groups, by their shown paths. ``spaces`` has, by shown path, the sources of nodes
    that are not from ``base``.
    """

    resolves_manifests = True  # the sources have resolved them
    holds_all_metadata = True

    @property
    def order(self) -> Iterable[str]:
        return self._arrays

    def __init__(self, base: KeySpace, nodes: Mapping[str, Node], spaces: Mapping[str, KeySpace] = {}) -> None:
        super().__init__(base)
        self._spaces = list(dict.fromkeys([base, *spaces.values()]))
        self.in_memory = all(space.in_memory for space in self._spaces)
        if base.url_of is not None:
            self.url_of = lambda key: (base.url_of or str)(self.find_object_key(key))
        owners = {path: spaces.get(path, base) for path in nodes}
        self._arrays = {path: _make_array(owners[path], node) for path, node in nodes.items() if node.is_array}
        for node in nodes.values():
            node.drop_axes()
        self._documents = {key: zarrmeta.dumps(doc) for key, doc in collect_documents(nodes).items()}
        self._shown_paths: dict[KeySpace, dict[str, str]] = {space: {} for space in self._spaces}
        for path, node in nodes.items():
            self._shown_paths[owners[path]][node.source] = path
        self.grids = {path: array.grid for path, array in self._arrays.items() if array.grid is not None}
        self._tree: dict[str, dict[str, bool]] = {"": {}}
        for key in self._documents:
            add_to_tree(self._tree, key)
        for path in nodes:
            add_to_tree(self._tree, path, is_directory=True)
            self._tree.setdefault(path, {})
        for name in ("attribute_dtypes", "unlimited_dimensions", "reports", "file_codecs"):
            found = [(paths, getattr(space, name)) for space, paths in self._shown_paths.items()]
            shown = {paths[p]: value for paths, values in found for p, value in values.items() if p in paths}
            setattr(self, name, shown)

    @classmethod
    def of(cls, base: KeySpace, choice: Choice) -> Steps[KeySpace]:
        """Apply ``choice`` to ``base``, whose metadata are read; but do not add the arrays in ``assign``.

        ManifestError, with the names that exist, for a name that the source does not have.
        """
        documents = yield from base.documents(leaves_out=choice.leaves_out)
        try:
            nodes = choose(group_by_node(parse_documents(documents)), choice)
        except ManifestError:  # the unknown name may be one of a node that was left out; errors list all names
            nodes = choose(group_by_node(parse_documents((yield from base.documents()))), choice)
        return cls(base, nodes)

    @property
    def source(self) -> KeySpace:
        return self  # not `base`: a selection cannot be written like its source

    @property
    def committed_as(self) -> str | None:  # type: ignore[override]  # a selection takes no commits
        return None

    @property
    def strangers(self) -> frozenset[str]:
        return frozenset().union(*(space.strangers for space in self._spaces))

    def find_some_urls(self) -> Steps[Sequence[str | None]]:
        urls = yield from run_together([space.find_some_urls() for space in self._spaces])
        return list(itertools.chain.from_iterable(urls))

    def _locate(self, key: str) -> tuple[_Array, tuple[int, ...] | str] | None:
        """Return the array of ``key``, and the key in the source, or the coordinates of a recut chunk; else None."""
        path = find_nearest(key, self._arrays)
        if path is None or zarrmeta.is_metadata(key):
            return None
        array, tail = self._arrays[path], make_relative(key, path)
        if array.is_whole:
            return array, join(array.source, tail)
        assert array.grid is not None, "an array of which a part is shown has a grid"
        assert array.stored is not None, "an array of which a part is shown has a grid"
        coords = array.grid.decode(tail)
        if coords is None or not array.grid.contains(coords):
            return None
        coords = tuple(array.insert_dropped(coords))
        if array.recut is not None:
            return array, coords
        there = [at + first for at, first in zip(coords, array.before, strict=True)]
        return array, join(array.source, array.stored.encoding.encode(there))

    def _find_source_key(self, key: str) -> tuple[KeySpace, str] | None:
        """Return the source that has ``key``, and the key there; None for metadata and recut chunks."""
        at = self._locate(key)
        return (at[0].space, at[1]) if at is not None and isinstance(at[1], str) else None

    def lookup(self, key: str) -> Steps[Entry | None]:
        data = self._documents.get(key)
        at = self._locate(key)
        if data is not None or at is None:
            return None if data is None else Inline(data)
        array, there = at
        if isinstance(there, str):
            return (yield from array.space.lookup(there))
        return (yield from self._join_chunk(array, there))

    def _join_chunk(self, array: _Array, coords: Sequence[int]) -> Steps[Entry]:
        """Return the entry of a chunk that is joined from sections of the source's chunks."""
        assert array.recut is not None, "the array is recut"
        assert array.meta is not None, "the array is recut"
        sections = _cut_sections(array, coords)
        check_sections([array.meta] * len(sections))
        source = PieceArray.of(array.meta, array.recut, None, repr(array.source))
        found = yield from array.space.find_entries(
            [join(array.source, source.tail(section.coords)) for section in sections]
        )
        return join_sections(
            array.recut, [(source, section, entry) for section, entry in zip(sections, found, strict=True)]
        )

    def make_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        found, others = self._group_by_source(keys)
        known = [_place_lookups(places, space.make_lookups(theirs)) for space, (places, theirs) in found.items()]
        return [*itertools.chain(*known), *(self.make_single_lookup(place, keys[place]) for place in others)]

    def make_read_lookups(self, keys: Sequence[str]) -> list[LookUp]:
        found, others = self._group_by_source(keys)
        known = [_place_lookups(places, space.make_read_lookups(theirs)) for space, (places, theirs) in found.items()]
        return [*itertools.chain(*known), *make_lookups_of(self, keys, others)]

    def _group_by_source(self, keys: Sequence[str]) -> tuple[dict[KeySpace, tuple[list[int], list[str]]], list[int]]:
        """Return, by source, the places in ``keys`` and the source's keys; and the places of all other keys."""
        found: dict[KeySpace, tuple[list[int], list[str]]] = {}
        others: list[int] = []
        for place, key in enumerate(keys):
            at = self._find_source_key(key)
            if at is None:
                others.append(place)
            else:
                places, theirs = found.setdefault(at[0], ([], []))
                places.append(place)
                theirs.append(at[1])
        return found, others

    def find_likely_spans(self, keys: Sequence[str]) -> dict[int, Span]:
        return {
            places[number]: span
            for space, (places, theirs) in self._group_by_source(keys)[0].items()
            for number, span in space.find_likely_spans(theirs).items()
        }

    def find_full_shards(self, keys: Iterable[str]) -> Steps[list[Span]]:
        spans: list[Span] = []
        for space, (_, theirs) in self._group_by_source([*keys])[0].items():
            spans += yield from space.find_full_shards(theirs)
        return spans

    def is_inner(self, key: str) -> bool:
        at = self._find_source_key(key)
        return at is not None and at[0].is_inner(at[1])

    def is_empty(self, key: str) -> Steps[bool]:
        at = self._find_source_key(key)
        return at is not None and (yield from at[0].is_empty(at[1]))

    def find_object_key(self, key: str) -> str:
        at = self._find_source_key(key)
        if at is not None:
            return at[0].find_object_key(at[1])
        path, name = parent(key)
        return join(self._arrays[path].source, name) if path in self._arrays else key

    def list_keys_of_other_parts(self, key: str) -> Iterator[str]:
        at = self._find_source_key(key)
        if at is None:
            return
        shown = self._shown_paths[at[0]]
        for other in at[0].list_keys_of_other_parts(at[1]):
            path = find_nearest(other, shown)
            array = None if path is None else self._arrays.get(shown[path])
            if path is not None and array is not None and array.is_whole:
                yield join(shown[path], make_relative(other, path))

    def list_directories(self, prefix: str) -> Steps[Directories | None]:
        yield from ()
        return None  # the directories of the source may have other names

    def is_directory(self, prefix: str) -> Steps[bool]:
        if prefix in self._tree:
            return True
        path = find_nearest(prefix, self._arrays)
        if path is not None and self._arrays[path].is_whole:
            array = self._arrays[path]
            return (yield from array.space.is_directory(join(array.source, make_relative(prefix, path))))
        return path is not None and bool((yield from self.children(prefix)))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        path = prefix if prefix in self._arrays else find_nearest(prefix, self._arrays)
        known = self._tree.get(prefix)
        own = None if known is None else sorted(map(self._to_row, itertools.repeat(prefix), known.items()), key=by_name)
        if path is None:
            return own
        chunks = yield from self._list_chunks_in(
            path, self._arrays[path], "" if prefix == path else make_relative(prefix, path)
        )
        return merge_listings(chunks or (), own or ()) if own is not None or chunks else None

    def _to_row(self, prefix: str, name: tuple[str, bool]) -> Listed:
        data = self._documents.get(join(prefix, name[0]))
        return Listed(name[0], None if data is None else len(data), name[1])

    def _list_chunks_in(self, path: str, array: _Array, directory: str) -> Steps[Sequence[Listed] | None]:
        """List a ``directory`` of an array, without metadata."""
        if array.is_whole:
            names = yield from array.space.children(join(array.source, directory))
            has_documents = not directory and any(zarrmeta.is_metadata(listed.name) for listed in names or ())
            return [n for n in names or () if not zarrmeta.is_metadata(n.name)] if has_documents else names
        grid, stored = array.grid, array.stored
        assert grid is not None, "an array that is cut has a grid"
        assert stored is not None, "an array that is cut has a grid"
        if array.recut is not None:
            found = grid.find_directory(directory)
            if found is not None and len(found.numbers) > LISTED:
                raise NotListable(
                    f"{path!r} has {len(found.numbers)} names: expected at most {LISTED} to be listed. Read each by "
                    "its key"
                )
            size = array.recut.nbytes if found is not None and found.is_leaf else None
            numbers = () if found is None else found.numbers
            return sorted((Listed(found.name_child(n), size, not found.is_leaf) for n in numbers if found), key=by_name)
        if not grid.counts:  # a scalar, whose one chunk lies at any depth in the source
            key = grid.encoding.encode(())
            (entry,) = yield from array.space.find_entries([join(array.source, stored.encoding.encode(array.before))])
            return [Listed(key, None)] if entry is not None and not directory else None
        leading = grid.parse_leading(directory)
        if leading is None and directory:
            return None
        there = ""
        if leading is not None:
            axes = [axis for axis in range(len(array.counts)) if axis not in array.dropped]
            above = array.insert_dropped([*leading, *[0] * (len(axes) - len(leading))])[: axes[len(leading)]]
            there = stored.directory_of([a + b for a, b in zip(above, array.before)])  # noqa: B905  # the first ones
        listed_there = yield from array.space.children(join(array.source, there))
        shown: list[Listed] = []
        for listed in listed_there or ():
            tail = join(there, listed.name)
            coords = stored.parse_leading(tail) if listed.is_directory else stored.decode(tail)
            if coords is None:
                continue
            local = [at - first for at, first in zip(coords, array.before)]  # noqa: B905  # of a directory, the first
            if all(0 <= at < count for at, count in zip(local, array.counts)):  # noqa: B905  # of a directory, the first
                at = [coord for axis, coord in enumerate(local) if axis not in array.dropped]
                name = (str(at[-1]) if at else "c") if grid.is_nested else grid.encoding.encode(at)
                is_directory = listed.is_directory and len(at) < len(grid.counts)
                shown.append(msgspec.structs.replace(listed, name=name, is_directory=is_directory))
        return sorted(shown, key=by_name)

    def can_list(self) -> Steps[bool]:
        return all((yield from run_together([space.can_list() for space in self._spaces])))

    def documents(self, prefix: str = "", leaves_out: LeavesOut | None = None) -> Steps[dict[str, bytes]]:
        yield from ()
        return {key: data for key, data in self._documents.items() if is_within(key, prefix)}

    def contents(self, prefix: str = "", errors: dict[str, Exception] | None = None) -> Steps[Contents]:
        members: dict[str, Any] = yield from self.documents(prefix)
        arrays: dict[str, ArrayChunks] = {}
        others: dict[str, int | None] = {}
        indexes: set[str] = set()
        for space in self._spaces:
            shown = {p: array for p, array in self._arrays.items() if array.space is space and is_within(p, prefix)}
            if space.is_reference_set or space.holds_all_metadata:
                parts = [(yield from space.contents("", errors))] if shown else []
            else:
                parts = yield from run_together(
                    [space.contents(array.source, errors) for array in shown.values() if array.recut is None]
                )
            chunks = {path: found for part in parts for path, found in part.arrays.items()}
            for path, array in shown.items():
                if array.recut is not None and array.grid is not None:
                    arrays[path] = ArrayChunks(array.grid, [range(array.grid.size)])
                elif array.source in chunks:
                    arrays[path] = array.renumber(chunks[array.source])
            whole = {array.source: path for path, array in shown.items() if array.is_whole}
            for part in parts:
                members |= _list_shown(part.members, whole)
                others |= _list_shown(part.others, whole)
                indexes |= _list_shown(dict.fromkeys(part.indexes), whole).keys()
        return Contents(members, arrays, others, frozenset(indexes))

    def chunks(self, array: str, numbers: Numbers, grid: ChunkGrid | None = None) -> Steps[Chunks]:
        known = self._arrays.get(array)
        if known is None or known.recut is not None or known.stored is None:
            return (yield from super().chunks(array, numbers, grid))
        return (yield from known.space.chunks(known.source, known.find_source_numbers(numbers), known.stored))

    def snapshot(self, threshold: int, on_progress: Any) -> Steps[Any]:
        yield from ()
        return None


def _list_shown(found: Mapping[str, Any], whole: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of chunks in the arrays of ``whole``, by shown keys; ``whole`` maps paths to shown paths."""
    owners = {key: find_nearest(key, whole) for key in found if not zarrmeta.is_metadata(key)}
    return {join(whole[p], make_relative(key, p)): found[key] for key, p in owners.items() if p is not None}


def _place_lookups(places: Sequence[int], look_ups: Iterable[LookUp]) -> list[LookUp]:
    """Return look-ups whose numbers, positions in ``places``, are replaced by these places."""
    return [LookUp([places[number] for number in numbers], steps) for numbers, steps in look_ups]


def _make_array(base: KeySpace, node: Node) -> _Array:
    """Return the shown form of an array. If it is recut, its document gets other chunks, without a codec."""
    meta = zarrmeta.array_meta(node.stored, repr(node.source))
    stored = base.grids.get(node.source) or (None if meta is None else meta.grid)
    shape, dropped = node.shape, node.dropped
    if shape == list(node.stored.get("shape") or ()) and not any(node.starts) and not dropped:
        return _Array(base, node.source, stored, stored)
    if meta is None or meta.chunks is None or stored is None:
        raise ManifestError(
            f"isel= or squeeze= changes {node.source!r}, whose chunks have several or unknown sizes: drop this "
            "variable, or cut the dataset after opening it"
        )
    sizes = [max(size, 1) for size in meta.chunks]
    is_within = any(start % size for start, size in zip(node.starts, sizes, strict=True))
    is_longer = any(sizes[axis] > 1 for axis in dropped) or (dropped and not _is_simple(meta))
    if math.prod(shape) and (is_within or is_longer):
        recut = _recut(node, meta)
        grid = _drop_axes(recut.meta.grid, dropped)
        return _Array(base, node.source, stored, grid, (), recut, node.starts, meta, dropped)
    grid = ChunkGrid.regular(shape, meta.chunks, stored.encoding)
    before = tuple(start // size for start, size in zip(node.starts, sizes, strict=True))
    if grid.counts == stored.counts:
        grid = stored
    before = before if grid.size else (0,) * len(before)
    return _Array(base, node.source, stored, _drop_axes(grid, dropped), before, dropped=dropped)


def _drop_axes(grid: ChunkGrid | None, axes: Sequence[int]) -> ChunkGrid | None:
    if grid is None or not axes:
        return grid
    return ChunkGrid(tuple(count for axis, count in enumerate(grid.counts) if axis not in axes), grid.encoding)


def _is_simple(meta: ArrayMeta) -> bool:
    """Return whether no codec depends on the number of dimensions."""
    names = [codec.get("name") if isinstance(codec, Mapping) else codec for codec in meta.raw.get("codecs") or ()]
    return "shards" not in meta.raw and not {"transpose", "sharding_indexed"}.intersection(map(str, names))


def _recut(node: Node, meta: ArrayMeta) -> Recut:
    """Recut an array, so that a chunk begins at its first element; ManifestError with chunk borders if impossible."""
    sizes = meta.chunks or ()
    chunks = tuple(min(size, length) for size, length in zip(sizes, node.shape, strict=True))
    where = repr(node.source)
    try:
        if "shards" in meta.raw:
            raise ManifestError("it has shards of version 2 of zarr: expected chunks, or shards of version 3")
        check_recut(node.source, meta, "the source")
        shown = zarrmeta.array_meta(node.array, where)
        assert shown is not None, "the node is an array"
        recut = Recut.of(shown, node.shape, chunks, where)
    except ManifestError as e:
        inside = [
            f"{start} along {dim or axis!r}, where chunks begin at 0, {size}, {2 * size} and so on"
            for axis, (start, size, dim) in enumerate(zip(node.starts, sizes, node.dims, strict=True))
            if start % size
        ]
        reason = f"cannot be cut: {e.__cause__ or e}"
        if not inside:
            raise ManifestError(f"isel= or squeeze= changes the chunks of {where}, which {reason}") from e
        raise ManifestError(
            f"isel= begins within a chunk of {where}: at {'; '.join(inside)}. Begin with the first element of a "
            f"chunk, since its chunks {reason}"
        ) from e
    name = "zarr.json" if "zarr.json" in node.documents else ".zarray"
    node.documents[name] = dict(recut.meta.raw)
    return recut


def _cut_sections(array: _Array, coords: Sequence[int]) -> list[Section]:
    """Return the sections of the source's chunks that the chunk at ``coords`` takes."""
    recut, meta = array.recut, array.meta
    assert recut is not None, "the array is recut"
    assert meta is not None, "the array is recut"
    along: list[list[tuple[int, tuple[int, int], tuple[int, int]]]] = []
    shape = recut.meta.shape
    for coord, size, theirs, start, extent in zip(
        coords, recut.chunks, meta.chunks or (), array.starts, shape, strict=True
    ):
        first = start + coord * size
        stop = min(first + size, start + extent)
        sections = []
        for number in range(first // theirs, -(-stop // theirs)):
            corner = number * theirs
            begin, end = max(first, corner), min(stop, corner + theirs)
            sections.append((number, (begin - corner, end - corner), (begin - first, end - first)))
        along.append(sections)
    return [Section(*map(tuple, zip(*section, strict=True))) for section in itertools.product(*along)]

"""Sets in a row as one key space: keys are rewritten on look-up, parts are opened when they are asked for. No I/O here.

Arrays that lie along the dimension have the chunks of all parts, and the first part's metadata with the whole length;
everything else is the first part's. A part that says otherwise than the first, or than the document, is an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_values import dtype_of, plain_document
from refshard_fs.core.directories import by_name
from refshard_fs.core.documents import Documents, Shown
from refshard_fs.core.format import OpenOptions, Probe, check_size
from refshard_fs.core.keys import ChunkGrid, is_number, join
from refshard_fs.core.keyspace import KeySpace, View
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, Pin, Raw, Span, Steps, together
from refshard_fs.core.zarrmeta import ArrayMeta
from refshard_fs.errors import ManifestError, NotListable
from refshard_fs.formats.virtual_concat.delegation import judged
from refshard_fs.formats.virtual_concat.document import ConcatDocument, ConcatIndex
from refshard_fs.references.resolving import resolver
from refshard_fs.references.values import METADATA
from refshard_fs.security.admission import Admission
from refshard_fs.security.policy import directory_of

__all__ = ["Axis", "Joined", "Lengthened", "open_"]

# ----------------------------------------------------------------------------------------------------
# Arrays of a first set shown with the length of all sets that lie in a row with it. No I/O here.


class Axis(msgspec.Struct, frozen=True):
    """What is known of an array: its grid as it is shown and, of one that is joined, where its parts' chunks begin."""

    grid: ChunkGrid | None
    meta: ArrayMeta | None = None  # of the first part; None: this array is that part's
    axis: int = 0
    starts: tuple[int, ...] = ()  # in chunks; and where the last part ends
    is_held: bool = False  # whether the document has the values


class Lengthened:
    """Shows arrays in the document's ``axes`` with the length of all parts."""

    def __init__(self, document: ConcatDocument, where: str) -> None:
        self.document, self.where = document, where
        self.starts = document.starts

    def over(self, data: bytes) -> Callable[[Mapping[str, Any], str], Shown[Axis]]:
        return self._shown

    def _shown(self, doc: Mapping[str, Any], path: str) -> Shown[Axis]:
        if doc.get("node_type") == "group":
            return doc, None
        meta = zarrmeta.array_meta(doc, f"{path!r} of the first set of {self.where}")
        if meta is None or path not in self.document.axes:
            return doc, Axis(None if meta is None else meta.grid)
        axis, total = self.document.axes[path], self.starts[-1]
        if axis >= len(meta.shape):
            raise ManifestError(f"{self.where}: {path!r} has {len(meta.shape)} dimensions, and no axis {axis}")
        if path == self.document.coordinate:
            shown: Mapping[str, Any] = plain_document(meta, total)
            return shown, Axis(_grid(shown, path), meta, is_held=True)
        if meta.chunks is None or meta.grid is None:
            raise ManifestError(f"{self.where}: the chunks of {path!r} are not of one size, or not known")
        size = meta.chunks[axis]
        for part, (start, _) in zip(self.document.parts, pairwise(self.starts), strict=True):
            if start % size:
                raise ManifestError(
                    f"{self.where}: {path!r} has chunks of {size} along {self.document.dim!r}, and the set "
                    f"{part.url!r} begins at {start}, within one: only the last set may end within a chunk"
                )
        shape = [*meta.shape[:axis], total, *meta.shape[axis + 1 :]]
        counts = accumulate((-(-part.length // size) for part in self.document.parts), initial=0)
        shown = {**doc, "shape": shape}
        return shown, Axis(_grid(shown, path), meta, axis, tuple(counts))


def _grid(doc: Mapping[str, Any], path: str) -> ChunkGrid | None:
    meta = zarrmeta.array_meta(doc, repr(path))
    return None if meta is None else meta.grid


DEEPEST: Final = 8  # documents within documents
LISTED: Final = 10_000_000  # names in a directory: documents of documents promise any number in some lines
TOGETHER: Final = 64  # parts that are opened at a time to list them
OWN: Final = {"shape", "attributes", "consolidated_metadata"}  # fields that may differ from part to part
MEANING: Final = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


class Joined(KeySpace):
    """The keys of ``document``'s parts as those of one set; ``open_part`` opens the one of a number."""

    resolves_manifests = True  # in each part

    def __init__(
        self,
        document: ConcatDocument,
        where: str,
        first: KeySpace,
        open_part: Callable[[int], Steps[KeySpace]],
        keep: int,
    ) -> None:
        self.first = first
        self.document = document
        self.document_url = where
        self.resolve: Callable[[str], str] = str  # what URLs in the document stand for
        self.where = where
        self._documents = Documents(first, Lengthened(document, where))
        self.grids: Mapping[str, ChunkGrid] = self._documents.grids
        self._inline_grids: Mapping[str, ChunkGrid] = {}
        self._open_part = open_part
        self._keep = max(keep, 1)
        self._parts: OrderedDict[int, KeySpace] = OrderedDict()
        self._seen: set[tuple[int, str]] = set()  # arrays of parts that are like the first part's

    def learn(self) -> Steps[None]:
        """Take in the arrays of the document; ManifestError where the first part has not got one, or the values not."""
        for path in self.document.axes:
            for name in METADATA:
                if path not in self._documents.arrays:
                    yield from self._documents.lookup(join(path, name))
            known = self._documents.arrays.get(path)
            if known is None:
                raise ManifestError(f"{self.where}: the first set has no array {path!r} to be joined")
            if known.is_held:
                self._check_values(path, known)
        inline = dict(self.first.inline_grids)
        joined = {path: self._documents.arrays[path].grid for path in self.document.axes if path in inline}
        self._inline_grids = inline | {path: grid for path, grid in joined.items() if grid is not None}

    @property
    def inline_grids(self) -> Mapping[str, ChunkGrid]:
        return self._inline_grids

    def some_urls(self) -> Steps[Sequence[str | None]]:
        return (yield from self.first.some_urls())

    def _check_values(self, path: str, known: Axis) -> None:
        dtype = None if known.meta is None else dtype_of(known.meta)
        if known.meta is None or dtype is None or len(known.meta.shape) != 1:
            raise ManifestError(f"{self.where}: {path!r} is no array of numbers with one dimension")
        for part in self.document.parts:
            size = len(part.values or b"")
            if size != part.length * dtype.itemsize:
                raise ManifestError(
                    f"{self.where}: the set {part.url!r} has {size} bytes of {path!r} for {part.length} elements of "
                    f"{dtype.itemsize} bytes"
                )

    def lookup(self, key: str) -> Steps[Entry | None]:
        if self._documents.is_document(key):
            return (yield from self._documents.lookup(key))
        path, known = yield from self._array_of(key)
        if known is None or known.grid is None:
            return (yield from self.first.lookup(key))
        grid = known.grid
        coords = grid.encoding.decode(key[len(path) + 1 :] if path else key, len(grid.counts))
        if coords is None:
            return (yield from self.first.lookup(key))
        if grid.number_of(coords) is None:
            return None
        if known.is_held:
            return Inline(b"".join(part.values or b"" for part in self.document.parts))
        number, local = _local(known, coords[known.axis])
        part = yield from self._part(number, path, known)
        tail = grid.encoding.encode([*coords[: known.axis], local, *coords[known.axis + 1 :]])
        return (yield from part.lookup(join(path, tail)))

    # ------------------------------------------------------------------ parts

    def _part(self, number: int, path: str, known: Axis) -> Steps[KeySpace]:
        """Return a part, which has been seen to have the array ``path`` as the first one has."""
        part = self.first if number == 0 else self._parts.get(number)
        if part is None:
            part = self._parts[number] = yield from self._open_part(number)
            with suppress(KeyError):  # other threads do the same
                while len(self._parts) > self._keep:
                    self._parts.popitem(last=False)
        elif number:
            with suppress(KeyError):
                self._parts.move_to_end(number)
        if (number, path) not in self._seen:
            yield from self._check(number, part, path, known)
            self._seen.add((number, path))
        return part

    def _check(self, number: int, part: KeySpace, path: str, known: Axis) -> Steps[None]:
        where = f"the set {self.document.parts[number].url!r} of {self.where}"
        first = known.meta
        assert first is not None, "an array that is not joined has no parts"
        name = "zarr.json" if first.zarr_format == 3 else ".zarray"
        doc = yield from _document(part, join(path, name), where)
        meta = None if doc is None else zarrmeta.array_meta(doc, f"{join(path, name)!r} of {where}")
        if meta is None or doc is None:
            raise ManifestError(f"{where} has no array {path!r}, which others have along {self.document.dim!r}")
        length = self.document.parts[number].length
        expected = (*first.shape[: known.axis], length, *first.shape[known.axis + 1 :])
        if meta.shape != expected:
            raise ManifestError(f"{path!r} of {where} has the shape {list(meta.shape)}, not {list(expected)}")
        mine, theirs = _compared(first.raw), _compared(doc)
        if first.zarr_format == 2:
            for found, space in ((mine, self.first), (theirs, part)):
                attributes = yield from _document(space, join(path, ".zattrs"), where)
                found |= {f"attribute {field}": (attributes or {}).get(field) for field in MEANING}
        for field in dict.fromkeys([*mine, *theirs]):
            if mine.get(field) != theirs.get(field):
                one, other = mine.get(field), theirs.get(field)
                raise ManifestError(f"{path!r} has the {field} {one!r} in the first set, and {other!r} in {where}")

    def _array_of(self, key: str) -> Steps[tuple[str, Axis | None]]:
        """Return the array that ``key`` lies below, and what is known of it if it is joined."""
        path = yield from self._documents.array_of(key)
        known = None if path is None else self._documents.arrays.get(path)
        return ("", None) if path is None or known is None or known.meta is None else (path, known)

    # ------------------------------------------------------------------ listing

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        path, known = yield from self._array_of(join(prefix, "x"))
        if known is None or known.grid is None:
            names = yield from self.first.children(prefix)
            return None if names is None else (yield from self._documents.sized(prefix, names))
        rest = prefix[len(path) :].strip("/") if path else prefix
        fixed = known.grid.leading(rest) if rest else None
        if fixed is None:
            return (yield from self.first.children(prefix)) if rest else (yield from self._array(path, known, prefix))
        if known.is_held:  # one chunk, of which the directory "c" is all there may be
            return [Listed("0", self._size_held())]
        if len(fixed) > known.axis:
            if not 0 <= fixed[known.axis] < known.grid.counts[known.axis]:
                return None
            number, local = _local(known, fixed[known.axis])
            part = yield from self._part(number, path, known)
            fixed = (*fixed[: known.axis], local, *fixed[known.axis + 1 :])
            return (yield from part.children(join(path, known.grid.directory_of(fixed))))
        found = yield from self._of_parts(path, known, join(path, known.grid.directory_of(fixed)), len(fixed))
        return found or None

    def is_directory(self, prefix: str) -> Steps[bool]:
        if (yield from self.first.is_directory(prefix)):
            return True
        return (yield from self.children(prefix)) is not None

    def _array(self, path: str, known: Axis, prefix: str) -> Steps[Sequence[Listed] | None]:
        """Return what lies in the directory of an array: its documents, and the chunks of all parts."""
        grid = known.grid
        assert grid is not None
        names = yield from self.first.children(prefix)
        shown = yield from self._documents.sized(prefix, names or ())
        others = [n for n in shown if not grid.has_name(n.name, is_directory=n.is_directory)]
        if known.is_held:
            head, _, deeper = grid.tail(0).partition("/")
            chunk = Listed(head, None, True) if deeper else Listed(head, self._size_held())
            return sorted([*others, chunk], key=by_name)
        below = [n for n in shown if n.name == "c" and grid.has_name(n.name, is_directory=n.is_directory)]
        chunks = below if below else (yield from self._of_parts(path, known, path, 0))
        return sorted([*others, *chunks], key=by_name) if names is not None or chunks else None

    def _size_held(self) -> int:
        return sum(len(part.values or b"") for part in self.document.parts)

    def _of_parts(self, path: str, known: Axis, directory: str, depth: int) -> Steps[list[Listed]]:
        """Return the chunks, and directories of them, that all parts have in ``directory``, by their names here."""
        found: dict[str, Listed] = {}
        numbers = range(len(self.document.parts))
        for first in range(0, len(numbers), TOGETHER):
            some = numbers[first : first + TOGETHER]
            listings = yield from together([self._listing(number, path, known, directory) for number in some])
            for number, listing in zip(some, listings, strict=True):
                for listed in listing:
                    name = _renamed(known, listed, known.starts[number], depth)
                    if name is not None:
                        found[name] = msgspec.structs.replace(listed, name=name)
            if len(found) > LISTED:
                raise NotListable(f"{directory!r} of {self.where} has more than {LISTED} names: too many to list")
        return sorted(found.values(), key=by_name)

    def _listing(self, number: int, path: str, known: Axis, directory: str) -> Steps[Sequence[Listed]]:
        part = yield from self._part(number, path, known)
        return (yield from part.children(directory)) or ()


def _local(known: Axis, coord: int) -> tuple[int, int]:
    """Return the part that has the chunks at ``coord`` along its axis, and where in it they are."""
    number = bisect_right(known.starts, coord) - 1
    return number, coord - known.starts[number]


def _renamed(known: Axis, listed: Listed, start: int, depth: int) -> str | None:
    """Return the name here of what a part has in a directory at ``depth``, its chunks beginning at ``start``."""
    grid = known.grid
    assert grid is not None
    name = listed.name
    if grid.encoding.separator == ".":
        coords = grid.encoding.decode(name, len(grid.counts))
        if coords is None:
            return None
        axis = known.axis
        return grid.encoding.encode([*coords[:axis], coords[axis] + start, *coords[axis + 1 :]])
    if grid.encoding.name == "default" and name == "c":
        return name
    if not is_number(name):
        return None
    return str(int(name) + start) if depth == known.axis else name


def _compared(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an array's metadata that must be the same in all parts."""
    found = {field: value for field, value in doc.items() if field not in OWN}
    if doc.get("zarr_format") == 2:
        found["dimension_separator"] = found.get("dimension_separator") or "."
        found["filters"] = found.get("filters") or None
    attributes = doc.get("attributes") or {}
    return found | {f"attribute {field}": attributes.get(field) for field in MEANING}


def _document(space: KeySpace, key: str, where: str) -> Steps[dict[str, Any] | None]:
    entry = yield from space.lookup(key)
    match entry:
        case None:
            return None
        case Inline(data):
            pass
        case _:
            data = yield Load(entry, Raw())
    try:
        doc = zarrmeta.loads(data)
    except ValueError as e:
        raise ManifestError(f"{key!r} of {where} is damaged: {e}") from e
    return doc if isinstance(doc, dict) else None


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a document, and its first part."""
    facts = probe.facts or Facts(None)
    check_size(facts.size, options.max_manifest_bytes, probe.url)
    pin = Pin(facts.etag, facts.last_modified, facts.size)
    entry = Inline(probe.head) if facts.size == len(probe.head) else Span(probe.url, pin=pin)
    document: ConcatDocument = yield Load(entry, ConcatIndex(probe.url))
    if options.depth > DEEPEST:
        raise ManifestError(f"{probe.url} joins sets that join sets, more than {DEEPEST} deep")
    if options.open_other is None:
        raise ManifestError(f"{probe.url} joins other sets, which cannot be opened here")
    open_other, rule_of = options.open_other, options.rule_of
    resolve = resolver(options, None if probe.is_in_memory else directory_of(probe.url))
    theirs = msgspec.structs.replace(options, shards="whole", base_url=None, depth=options.depth + 1)

    def open_part(number: int) -> Steps[KeySpace]:
        url = resolve(document.parts[number].url)
        rule = Admission() if rule_of is None else rule_of(url)
        opened = yield from judged(open_other(url, theirs), rule)
        return opened if rule.admits_all else _Judged(opened, rule)

    first = yield from open_part(0)
    joined = Joined(document, probe.url, first, open_part, options.cache_size)
    joined.resolve = resolve
    yield from joined.learn()
    return joined


class _Judged(View):
    """A part of somebody else's: its look-ups held to ``rule``."""

    def __init__(self, base: KeySpace, rule: Admission) -> None:
        super().__init__(base)
        self._rule = rule

    def lookup(self, key: str) -> Steps[Entry | None]:
        return (yield from judged(self.base.lookup(key), self._rule))

    def children(self, prefix: str) -> Steps[Sequence[Listed] | None]:
        return (yield from judged(self.base.children(prefix), self._rule))

    def is_directory(self, prefix: str) -> Steps[bool]:
        return (yield from judged(self.base.is_directory(prefix), self._rule))

"""The locations of an array's chunks as columns: key spaces return these for whole arrays. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs.core.checksums import ChecksumRecipe
from refshard_fs.core.columns import NO_TARGET, WHOLE, Part, Ranges, Row, UInt64s, find_distinct_codes
from refshard_fs.core.keys import ChunkGrid
from refshard_fs.core.model import Entry, Inline, Origin, Packed, Pin, Span, add_origin

# Numbers of chunks: positions in C order in the grid of their array.
Numbers = range | UInt64s


def make_column(numbers: Numbers) -> UInt64s:
    """Return chunk numbers as a column."""
    return np.arange(numbers.start, numbers.stop, dtype=np.uint64) if isinstance(numbers, range) else numbers


class Chunks(msgspec.Struct, frozen=True, eq=False):
    """The locations of some chunks of one array, a row for each chunk, in the order of the request.

    - ``urls``: the targets, as the source writes them (`KeySpace.resolve` makes them absolute). None is the default
      target.
    - ``ranges``: the target (an index into ``urls``), offset and length of each row. The target is NO_TARGET if the
      chunk does not exist, or if the row is ``inline`` or ``packed``. The length is WHOLE if the chunk reaches to the
      end of its target.
    - ``inline``: by row, the bytes that the source itself holds.
    - ``checks``: by row, checksums and versions, which only chunk manifests have. An empty mapping stands for a chunk
      that the manifest marks as missing.
    - ``packed``: by row, the entries of chunks that are not a range of a target: they are decoded, joined, or counted
      from the end of their target.
    - ``pins`` and ``origins``: one of each for each target; empty if the source has none.
    """

    urls: Sequence[str | None]
    ranges: Ranges
    inline: Mapping[int, bytes]
    checks: Mapping[int, Mapping[str, str]] = {}
    packed: Mapping[int, Entry] = {}
    pins: Sequence[Pin | None] = ()
    origins: Sequence[Origin] = ()

    def __len__(self) -> int:
        """Return the number of rows, whether their chunks exist or not."""
        return self.ranges.rows

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes."""
        texts = sum(len(url or "") + 60 for url in self.urls)
        return self.ranges.nbytes + texts + sum(len(data) + 130 for data in self.inline.values())

    @property
    def versions(self) -> dict[int, dict[str, str]]:
        """The ETag and the time of modification in each pin that has one, by target."""
        return {target: pin.version for target, pin in enumerate(self.pins) if pin is not None and pin.version}

    def get_value(self, row: int) -> Row | bytes | None:
        """Return the reference or the inline bytes in ``row``; None if it has neither.

        A reference is a `core.columns.Row`: the target (an index into ``urls``), the offset and the length.
        """
        found = self.ranges.get_row(row)
        return self.inline.get(row) if found is None else found

    def find_entry(self, row: int) -> Entry | None:
        """Return the entry of the chunk in ``row``; None if the chunk does not exist."""
        found = self.get_value(row)
        if isinstance(found, bytes):
            return Inline(found)
        if found is None:
            return self.packed.get(row)
        stop = None if found.length is None else found.offset + found.length
        pin = self.pins[found.target] if self.pins else None
        origin = self.origins[found.target] if self.origins else ()
        return Span(self.urls[found.target] or "", found.offset, stop, pin=pin, origin=origin)

    def list_present(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return the rows in ``[start, stop)`` that are ranges or inline, ascending."""
        is_present = self.ranges.targets != NO_TARGET
        is_present[list(self.inline)] = True
        found: list[int] = (np.flatnonzero(is_present[start:stop]) + start).tolist()
        return found

    def add_origin(self, origin: Origin) -> Chunks:
        """Return these chunks with ``origin``, the servers of sets that contain them, added to each origin."""
        own = self.origins or [()] * len(self.urls)
        joined = [known if known[: len(origin)] == origin else (*origin, *known) for known in own]
        packed = {row: add_origin(entry, origin) for row, entry in self.packed.items()}
        return msgspec.structs.replace(self, origins=joined, packed=packed)

    def make_part(self, start: int) -> Part:
        """Return the numbers and sizes of the chunks that are ranges or inline, where row 0 is chunk ``start``."""
        lengths = self.ranges.lengths.copy()
        for row, data in self.inline.items():
            lengths[row] = len(data)
        rows = np.array(self.list_present(), np.uint64)
        places = np.zeros(len(rows), np.uint64)
        return Part(rows + np.uint64(start), Ranges(places.astype(np.uint32), places, lengths[rows]))


class ChunksBuilder:
    """Collect `Chunks` of ``count`` rows; at first no chunk exists."""

    def __init__(self, count: int) -> None:
        self.ranges = Ranges.make_absent(count)
        self.inline: dict[int, bytes] = {}
        self.checks: dict[int, Mapping[str, str]] = {}
        self.packed: dict[int, Entry] = {}
        self._codes: dict[tuple[str | None, Pin | None, Origin], int] = {}

    def encode_target(self, url: str | None, pin: Pin | None = None, origin: Origin = ()) -> int:
        """Return the number that the column of targets has for ``url`` in the version ``pin``."""
        target = url, pin, origin
        return self._codes.setdefault(target, len(self._codes))

    def put(
        self,
        rows: Any,
        urls: Sequence[str | None],
        ranges: Ranges,
        pins: Sequence[Pin | None] | Mapping[int, Pin | None] = (),
        origins: Sequence[Origin] | Mapping[int, Origin] = (),
    ) -> None:
        """Set ``rows`` (an index of numpy) to ``ranges``, whose targets are indexes into the other arguments."""
        has_target = ranges.targets != NO_TARGET
        used, places = find_distinct_codes(ranges.targets[has_target], len(urls))
        codes = [
            self.encode_target(urls[target], pins[target] if pins else None, origins[target] if origins else ())
            for target in used
        ]
        targets = np.full(ranges.rows, NO_TARGET, np.uint32)
        targets[has_target] = np.array(codes, np.uint32)[places]
        self.ranges.put(rows, ranges._replace(targets=targets))

    def put_chunks(self, rows: npt.NDArray[np.int64], chunks: Chunks, resolve: Callable[[str | None], str]) -> None:
        """Set ``rows`` to chunks of another source, whose URLs ``resolve`` makes absolute."""
        self.put(rows, [resolve(url) for url in chunks.urls], chunks.ranges, chunks.pins, chunks.origins)
        self.inline |= {int(rows[row]): data for row, data in chunks.inline.items()}
        self.checks |= {int(rows[row]): check for row, check in chunks.checks.items()}
        self.packed |= {int(rows[row]): entry for row, entry in chunks.packed.items()}

    def put_entry(self, row: int, entry: Entry | None) -> None:
        """Set ``row`` to the entry that a look-up returned."""
        match entry:
            case None:
                return
            case Inline(data):
                self.inline[row] = data
                return
            case Packed(source, ChecksumRecipe() as recipe, start=None, stop=None):
                self.checks[row] = {"checksum": recipe.checksum}
                entry = source
        if not isinstance(entry, Span) or entry.start < 0:
            self.packed[row] = entry
            return
        targets, offsets, lengths = self.ranges
        targets[row] = self.encode_target(entry.url, entry.pin, entry.origin)
        offsets[row] = entry.start
        lengths[row] = WHOLE if entry.stop is None else entry.stop - entry.start

    def finish(self) -> Chunks:
        """Return the chunks, without targets that no row uses."""
        targets = self.ranges.targets
        targets[list(self.inline)] = NO_TARGET
        has_target = targets != NO_TARGET
        known = list(self._codes)
        codes, places = find_distinct_codes(targets[has_target], len(known))
        targets[has_target] = places
        used = [known[code] for code in codes]
        pins = [pin for _, pin, _ in used] if any(pin is not None for _, pin, _ in used) else ()
        origins = [origin for *_, origin in used] if any(origin for *_, origin in used) else ()
        return Chunks([url for url, *_ in used], self.ranges, self.inline, self.checks, self.packed, pins, origins)


class ArrayChunks(msgspec.Struct, frozen=True, eq=False):
    """The chunks of an array that may exist: ``numbers`` as ascending ranges, or as one column in any order.

    ``sizes`` is the size in bytes of each number in a column, from a listing; WHOLE if the listing has no size.
    ``pins_chunks``: pins belong to single chunks, as in chunk manifests, and not to their targets.
    """

    grid: ChunkGrid
    numbers: Sequence[range] | UInt64s = ()
    sizes: UInt64s | None = None
    pins_chunks: bool = False

    @property
    def count(self) -> int:
        """The number of chunks that may exist."""
        return len(self.numbers) if isinstance(self.numbers, np.ndarray) else sum(map(len, self.numbers))

    @property
    def column(self) -> UInt64s:
        """The numbers as one column."""
        if isinstance(self.numbers, np.ndarray):
            return self.numbers
        ranges = [np.arange(part.start, part.stop, dtype=np.uint64) for part in self.numbers]
        return np.concatenate([np.zeros(0, np.uint64), *ranges])

    def iterate_batches(self, most: int) -> Iterator[tuple[Numbers, UInt64s | None]]:
        """Yield the numbers, at most ``most`` at a time, with their sizes, or None if these are unknown."""
        if isinstance(self.numbers, np.ndarray):
            for start in range(0, len(self.numbers), most):
                part = slice(start, start + most)
                yield self.numbers[part], None if self.sizes is None else self.sizes[part]
            return
        for numbers in self.numbers:
            for start in range(numbers.start, numbers.stop, most):
                yield range(start, min(start + most, numbers.stop)), None

    def list_blocks(self, size: int) -> list[int]:
        """Return the blocks that may hold chunks, ascending; block ``b`` has ``size`` numbers from ``b * size`` on."""
        if isinstance(self.numbers, np.ndarray):
            found: list[int] = np.unique(self.numbers // np.uint64(size)).tolist()
            return found
        blocks: dict[int, None] = {}
        for numbers in self.numbers:
            blocks.update(dict.fromkeys(range(numbers.start // size, -(-numbers.stop // size))))
        return list(blocks)


class Listing(NamedTuple):
    """The listing of an array: its chunks, other keys with their sizes, and directories that hold no chunks.

    ``indexes`` are keys that only locate chunks, such as chunk manifests.
    """

    chunks: ArrayChunks
    others: Mapping[str, int | None]
    directories: Sequence[str]
    indexes: frozenset[str] = frozenset()


class Contents(msgspec.Struct, frozen=True, eq=False):
    """Everything below a prefix of a key space.

    - ``members``: all metadata, and in sets of references every key that is not a chunk. A value is bytes (or a text or
      a JSON object that stands for bytes), or the range of a target: ``[url, offset, length]``.
    - ``arrays``: the chunks that may exist, by the array's path.
    - ``others``: all other keys, which have to be looked up, with their sizes if a listing states them.
    - ``indexes``: the keys in ``others`` that only locate chunks.
    """

    members: dict[str, Any]
    arrays: dict[str, ArrayChunks]
    others: dict[str, int | None] = {}
    indexes: frozenset[str] = frozenset()

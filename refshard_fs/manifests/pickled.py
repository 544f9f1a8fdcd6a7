"""Reference sets in as few bytes as little time buys, for pickles. No I/O here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from refshard_fs import zarrmeta
from refshard_fs.columns import ChunkTable, Row
from refshard_fs.keys import ChunkGrid
from refshard_fs.manifests.reference_set import ReferenceSet
from refshard_fs.manifests.settling import set_by_key
from refshard_fs.manifests.side_table import Run, SideTable, Value
from refshard_fs.manifests.words import Buffer
from refshard_fs.pins import Pins
from refshard_fs.texts import Texts

__all__ = ["shrink", "shrink_bytes", "swell", "swell_bytes"]

_CHECK: Final = struct.Struct("<I")  # stands before each part of a column
_SIZE: Final = struct.Struct("<II")  # what blosc's header begins with: of four bytes each, and the size of the content
BLOCK: Final = 1 << 30  # bytes that blosc takes at a time, at most


class _Table(msgspec.Struct, frozen=True, array_like=True):
    path: bytes  # in UTF-8, with half surrogate pairs
    grid: ChunkGrid
    columns: list[list[bytes] | None]  # targets, offsets, lengths, numbers


class _Aside(msgspec.Struct, frozen=True, array_like=True):
    """A table of what lies aside; a Row is an array."""

    keys: list[bytes]
    data: list[bytes]
    columns: list[list[bytes]]  # sizes of keys, targets, offsets, lengths
    objects: dict[int, Any]


class _Set(msgspec.Struct, frozen=True, array_like=True):
    urls: list[bytes]
    url_ends: list[bytes]
    tables: list[_Table]
    side: dict[str, Any]  # a Row is an array
    pins: list[list[bytes]] | None = None  # ETags, their ends, times, their ends, sizes
    aside: _Aside | None = None
    named: str | None = None  # in errors: a set that is all by key


_DTYPES: Final = (np.uint32, np.uint64, np.uint64, np.uint64)


def shrink(refs: ReferenceSet) -> bytes:
    """Return bytes that `swell` makes ``refs`` of; ValueError where something in it cannot be written."""
    tables = []
    for path, t in refs.in_columns.items():
        columns: list[list[bytes] | None] = [_packed(_steps(t.targets)), _packed(_steps(t.offsets)), _packed(t.lengths)]
        columns.append(None if t.numbers is None else _packed(_steps(t.numbers)))
        tables.append(_Table(path.encode("utf-8", "surrogatepass"), t.grid, columns))
    side, aside = dict[str, Any](), None
    match refs.by_key:
        case SideTable() as table:
            aside = _shrunk(table.run())
        case members if _is_text(members):
            side = dict(members)
        case members:
            aside = _shrunk(Run.of(members))
    urls, pins = refs.urls, None
    if refs.pins is not None:
        texts = (refs.pins.etags, refs.pins.times)
        pins = [_packed(column) for t in texts for column in (t.data, _steps(t.ends))] + [_packed(refs.pins.sizes)]
    try:
        return msgspec.msgpack.encode(
            _Set(_packed(urls.data), _packed(_steps(urls.ends)), tables, side, pins, aside, refs.named)
        )
    except (TypeError, OverflowError, RecursionError) as e:
        raise ValueError(f"the data among the references cannot be written: {e}") from e


def swell(data: bytes) -> ReferenceSet:
    """Return the reference set that `shrink` wrote; ValueError where the bytes are damaged."""
    try:
        return _built(msgspec.msgpack.decode(data, type=_Set))
    except (msgspec.MsgspecError, RuntimeError, SystemError, MemoryError, TypeError) as e:  # msgpack's, blosc's, Row's
        raise ValueError(f"the pickled references are damaged: {e}") from e


def _built(found: _Set) -> ReferenceSet:
    tables = {}
    for t in found.tables:
        targets, offsets, lengths, numbers = (
            None if column is None else _unpacked(column, dtype)
            for column, dtype in zip(t.columns, _DTYPES, strict=True)
        )
        if targets is None or offsets is None or lengths is None:
            raise ValueError("a table lacks a column")
        absolute = None if numbers is None else _sums(numbers)
        path = t.path.decode("utf-8", "surrogatepass")
        tables[path] = ChunkTable(t.grid, _sums(targets), _sums(offsets), lengths, absolute)
        tables[path].check()
    side: Mapping[str, Value]
    if found.aside is None:
        side = {key: Row(*value) if type(value) is list else value for key, value in found.side.items()}
    else:
        side = SideTable.of([_swollen(found.aside)])
        side.check()
    pins = None
    if found.pins is not None:
        etags, etag_ends, times, time_ends, sizes = found.pins
        pins = Pins(_texts(etags, etag_ends), _texts(times, time_ends), _unpacked(sizes, np.uint64))
    urls = _texts(found.urls, found.url_ends)
    if found.named is not None and isinstance(side, SideTable):
        return msgspec.structs.replace(set_by_key(urls, side, found.named), pins=pins)
    return ReferenceSet(urls, tables, side, pins=pins)


def _shrunk(run: Run) -> _Aside:
    columns = [_packed(run.sizes), _packed(_steps(run.targets)), _packed(_steps(run.offsets)), _packed(run.lengths)]
    objects = {  # an object that has half a surrogate pair, as the JSON that it is read as
        place: zarrmeta.dumps(value) if isinstance(value, dict) and not _is_text(value) else value
        for place, value in run.objects.items()
    }
    return _Aside(shrink_bytes(run.keys), shrink_bytes(run.data), columns, objects)


def _is_text(value: Mapping[str, Any]) -> bool:
    """Whether nothing in ``value`` is half a surrogate pair, which UTF-8 cannot spell."""
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return False
    except (TypeError, OverflowError, RecursionError):  # which is told when all is written
        return True
    return True


def _swollen(found: _Aside) -> Run:
    sizes, targets, offsets, lengths = map(_unpacked, found.columns, (np.int64, np.uint32, np.uint64, np.uint64))
    keys, data = swell_bytes(found.keys), swell_bytes(found.data)
    if not len(sizes) == len(targets) == len(offsets) == len(lengths) or (sizes < 0).any():
        raise ValueError("what lies aside has columns of different lengths")
    if int(sizes.sum()) + len(sizes) != len(keys):
        raise ValueError("what lies aside has other keys than it says")
    return Run(keys, sizes, _sums(targets), _sums(offsets), lengths, data, found.objects)


def _texts(data: list[bytes], ends: list[bytes]) -> Texts:
    return Texts(_unpacked(data, np.uint8), _sums(_unpacked(ends, np.uint64)))


def shrink_bytes(data: Buffer) -> list[bytes]:
    """Return ``data``, compressed."""
    return _packed(np.frombuffer(data, np.uint8))


def swell_bytes(parts: list[bytes]) -> bytes:
    """Return the bytes that `shrink_bytes` took."""
    return _unpacked(parts, np.uint8).tobytes()


def _steps(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first value, and then from each one to the next; differences wrap around."""
    out = array.copy()
    out[1:] -= array[:-1]
    return out


def _sums(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.cumsum(array, dtype=array.dtype, out=array)


def _packed(array: npt.NDArray[Any]) -> list[bytes]:
    from numcodecs import blosc  # slow to import, and only pickles need it

    step = BLOCK // array.itemsize
    shuffle = blosc.SHUFFLE if array.itemsize > 1 else blosc.NOSHUFFLE
    parts = (
        bytes(blosc.compress(np.ascontiguousarray(array[i : i + step]), b"zstd", 1, shuffle))
        for i in range(0, len(array), step)
    )
    return [_CHECK.pack(zlib.crc32(part)) + part for part in parts]


def _unpacked(parts: list[bytes], dtype: type[Any]) -> npt.NDArray[Any]:
    from numcodecs import blosc

    for part in parts:  # blosc ends the process over some damaged ones
        if part[: _CHECK.size] != _CHECK.pack(zlib.crc32(memoryview(part)[_CHECK.size :])):
            raise ValueError("its checksum is another one")
    sizes = [_size(part) for part in parts]
    out = np.empty(sum(sizes), np.uint8)
    for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True):
        if size:
            blosc.decompress(memoryview(part)[_CHECK.size :], out[end - size : end])
    return out.view(dtype)


def _size(part: bytes) -> int:
    """Return the bytes that a part of a column has decompressed, as blosc's header says, which the checksum covers."""
    if len(part) < _CHECK.size + _SIZE.size:
        raise ValueError("a part of a column has no header")
    size: int = _SIZE.unpack_from(part, _CHECK.size)[1]
    return size

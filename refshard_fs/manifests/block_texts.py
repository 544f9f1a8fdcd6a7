"""The texts among the members of a block, as the bytes that spell them, most escapes and all. No I/O here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.columns import ABSENT, UInt64s
from refshard_fs.manifests.hashing import gathered
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.side_table import ESCAPED, text_at
from refshard_fs.manifests.words import PAD, Positions

__all__ = ["BlockTexts", "Irregular", "block_texts"]

_SIMPLE: Final = np.array([chr(byte) in '"\\bfnrt' for byte in range(256)])  # what stands escaped in all JSON
_LIST: Final[Callable[[bytes], list[str]]] = msgspec.json.Decoder(list[str]).decode


class Irregular(Exception):
    """Something in texts that only a JSON reader can tell the meaning of."""


class BlockTexts(NamedTuple):
    """Texts in the order of the block: each is ``data[offset : offset + length]``, in UTF-8 or, if so marked, JSON."""

    rows: Positions  # of the records
    data: bytes
    offsets: UInt64s  # with ESCAPED in those that have escapes
    lengths: UInt64s

    def text(self, place: int) -> str:
        """Return one of the texts."""
        return text_at(self.data, int(self.offsets[place]), int(self.lengths[place]))


def block_texts(records: Records) -> BlockTexts | None:
    """Return the texts among records, None if there are none; `Irregular` where a JSON reader has to look at them."""
    if records.value_starts is None or records.value_stops is None:
        return None
    text = records.text
    characters = np.frombuffer(text, np.uint8)
    if characters[len(PAD) : -len(PAD)].min() < ord(" "):
        raise Irregular
    rows = np.flatnonzero(records.targets == ABSENT)
    starts, stops = records.value_starts[rows], records.value_stops[rows]
    data, begins = _plain(text, starts, stops)
    offsets, lengths = begins.astype(np.uint64), (stops - starts).view(np.uint64)
    if records.escapes is not None and records.has_escape is not None:
        escaped = np.flatnonzero(records.has_escape[rows])
        if _SIMPLE[characters[records.escapes + 1]].all():
            offsets[escaped] |= np.uint64(ESCAPED)
        else:
            decoded = _decoded(text, starts[escaped], stops[escaped])
            sizes = np.fromiter(map(len, decoded), np.uint64, len(decoded))
            offsets[escaped] = np.uint64(len(data)) + sizes.cumsum() - sizes
            lengths[escaped] = sizes
            data = b"".join((data, *decoded))
    return BlockTexts(rows, data, offsets, lengths)


def _decoded(text: bytes, starts: Positions, stops: Positions) -> list[bytes]:
    """Return what pieces of ``text`` say, which stand between quotes in JSON."""
    pieces = [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    try:
        return list(map(str.encode, _LIST(b'["%b"]' % b'","'.join(pieces))))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise Irregular from e


def _plain(text: bytes, starts: Positions, stops: Positions) -> tuple[bytes, Positions]:
    """Return bytes that have those pieces of ``text``, and where: the text itself, if they are most of it."""
    sizes = stops - starts
    total = int(sizes.sum())
    if 2 * total > len(text):
        return text, starts
    return gathered(text, starts, stops), sizes.cumsum() - sizes

"""The texts among the members of a block, as bytes: those with escapes decoded, each once. No I/O here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from refshard_fs.columns import ABSENT, UInt64s
from refshard_fs.manifests.hashing import gathered
from refshard_fs.manifests.json_fast import Records
from refshard_fs.manifests.words import PAD, Positions

__all__ = ["BlockTexts", "Irregular", "block_texts"]

_LIST: Final[Callable[[bytes], list[str]]] = msgspec.json.Decoder(list[str]).decode


class Irregular(Exception):
    """Something in texts that only a JSON reader can tell the meaning of."""


class BlockTexts(NamedTuple):
    """Texts in the order of the block: each is ``data[offset : offset + length]`` in UTF-8.

    ``escaped[which[i]]`` is the text itself, if it had escapes; else ``which[i]`` is -1.
    """

    rows: Positions  # of the records
    data: bytes
    offsets: UInt64s
    lengths: UInt64s
    escaped: list[str]
    which: Positions

    def text(self, place: int) -> str:
        """Return one of the texts."""
        which = int(self.which[place])
        if which >= 0:
            return self.escaped[which]
        start = int(self.offsets[place])
        return self.data[start : start + int(self.lengths[place])].decode()


def block_texts(records: Records) -> BlockTexts | None:
    """Return the texts among records, None if there are none; `Irregular` where a JSON reader has to look at them."""
    if records.value_starts is None or records.value_stops is None:
        return None
    text = records.text
    if np.frombuffer(text, np.uint8)[len(PAD) : -len(PAD)].min() < ord(" "):
        raise Irregular
    rows = np.flatnonzero(records.targets == ABSENT)
    starts, stops = records.value_starts[rows], records.value_stops[rows]
    which = np.full(len(rows), -1, np.int64)
    if records.escapes is None:
        data, begins = _plain(text, starts, stops)
        return BlockTexts(rows, data, begins.view(np.uint64), (stops - starts).view(np.uint64), [], which)
    has_escape = records.escapes.searchsorted(starts) < records.escapes.searchsorted(stops)
    chosen, others = np.flatnonzero(has_escape), np.flatnonzero(~has_escape)
    spans = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
    pieces = [text[start:stop] for start, stop in spans]
    distinct: dict[bytes, Any] = dict.fromkeys(pieces)
    try:
        decoded = _LIST(b'["%b"]' % b'","'.join(distinct))
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise Irregular from e
    encoded = list(map(str.encode, decoded))
    distinct = {piece: number for number, piece in enumerate(distinct)}
    numbers = np.fromiter(map(distinct.__getitem__, pieces), np.int64, len(pieces))
    which[chosen] = numbers
    data, begins = _plain(text, starts[others], stops[others])
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets, lengths = np.empty(len(rows), np.int64), stops - starts
    offsets[others] = begins
    offsets[chosen] = (len(data) + sizes.cumsum() - sizes)[numbers]
    lengths[chosen] = sizes[numbers]
    data = b"".join((data, *encoded))
    return BlockTexts(rows, data, offsets.view(np.uint64), lengths.view(np.uint64), decoded, which)


def _plain(text: bytes, starts: Positions, stops: Positions) -> tuple[bytes, Positions]:
    """Return bytes that have those pieces of ``text``, and where: the text itself, if they are most of it."""
    sizes = stops - starts
    total = int(sizes.sum())
    if 2 * total > len(text):
        return text, starts
    return gathered(text, starts, stops), sizes.cumsum() - sizes

"""The headers of a FITS file: cards of 80 characters in blocks of 2,880 bytes. No I/O here.

Names are those of the standard (version 4.0): a file is a sequence of HDUs, each a header and a data unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from refshard_fs.core.zarrmeta import COUNTABLE
from refshard_fs.errors import ManifestError

BLOCK: Final = 2880  # bytes, of which headers and data units take whole numbers
CARD: Final = 80  # bytes
MOST_HEADER: Final = 64 << 20  # bytes of one header
MOST_AXES: Final = 32  # that numpy has everywhere

_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_COMMENTARY: Final = ("COMMENT", "HISTORY", "")
_BITPIX: Final = (8, 16, 32, 64, -32, -64)
# Say how a header and its data unit are laid out, and so nothing of the image to whom it is shown.
_STRUCTURAL: Final = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|TFIELDS|T(?:TYPE|FORM|UNIT|DIM|NULL)\d+|THEAP|END|"
    r"ZIMAGE|ZSIMPLE|ZTENSION|ZEXTEND|ZPCOUNT|ZGCOUNT|ZBITPIX|ZNAXIS\d*|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+|ZQUANTIZ|"
    r"ZDITHER0|ZSCALE|ZZERO|ZBLANK|ZHECKSUM|ZDATASUM|CHECKSUM|DATASUM|BSCALE|BZERO|BLANK"
)


class Short(Exception):
    """The header goes on behind the bytes that were given."""


class Header(msgspec.Struct, frozen=True):
    """The header at ``start`` of a file: values by keyword (``cards``). Its data unit begins at ``stop``."""

    start: int
    stop: int
    cards: Mapping[str, Any]
    where: str

    def integer(self, keyword: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number of at least ``least``; ManifestError where the card has none."""
        value = self.cards.get(keyword, default)
        if type(value) is not int or not least <= value < COUNTABLE:
            raise ManifestError(f"{self.where}: its {keyword} is {value!r}, no integer from {least} to 2**63-1")
        return value

    def number(self, keyword: str, default: float) -> float:
        """Return a number."""
        value = self.cards.get(keyword, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ManifestError(f"{self.where}: its {keyword} is {value!r}, no number")
        return value

    def axes(self, prefix: str = "") -> tuple[int, ...]:
        """Return the lengths of the axes, the slowest first, as numpy has them; ``prefix`` is Z for compressed ones."""
        count = self.integer(f"{prefix}NAXIS")
        if count > MOST_AXES:
            raise ManifestError(f"{self.where}: its {prefix}NAXIS is {count}, and {MOST_AXES} axes can be shown")
        axes = tuple(self.integer(f"{prefix}NAXIS{axis}") for axis in range(count, 0, -1))
        if math.prod(axes) * 8 >= COUNTABLE:
            raise ManifestError(f"{self.where}: its axes {axes} are more than 63 bits count")
        return axes

    def bitpix(self, prefix: str = "") -> int:
        """Return the size of a number in bits, negative for floating point."""
        found = self.cards.get(f"{prefix}BITPIX")
        if type(found) is not int or found not in _BITPIX:
            raise ManifestError(f"{self.where}: its {prefix}BITPIX is {found!r}, none of {_BITPIX}")
        return found

    @property
    def data_size(self) -> int:
        """Bytes of the data unit, without what fills its last block."""
        axes = self.axes()
        if self.cards.get("GROUPS") is True and axes and not axes[-1]:
            axes = axes[:-1]  # random groups: the first axis is none
        elements = math.prod(axes) if axes else 0
        parameters = self.integer("PCOUNT", 0) if axes else 0
        return abs(self.bitpix()) // 8 * self.integer("GCOUNT", 1) * (parameters + elements)

    @property
    def end(self) -> int:
        """Where the next HDU begins."""
        return self.stop + -(-self.data_size // BLOCK) * BLOCK

    @property
    def attributes(self) -> dict[str, Any]:
        """The cards that tell of the image, and of how it came to be."""
        return {name: value for name, value in self.cards.items() if not _STRUCTURAL.fullmatch(name)}


def parse_header(data: bytes, start: int, size: int, where: str) -> Header:
    """Return the header at ``start`` of a file of ``size`` bytes; ``data`` are bytes from there on.

    Raises `Short` where ``data`` are too few, and ManifestError where it has no end or a card makes no sense.
    """
    cards: dict[str, Any] = {}
    commentary: dict[str, list[str]] = {}
    texts: dict[str, list[str]] = {}  # of cards, in the parts that continue one another
    parts: list[str] = []
    for at in range(0, len(data) - CARD + 1, CARD):
        card = data[at : at + CARD].decode("latin-1")
        keyword = card[:8].rstrip()
        if keyword == "END":
            stop = start + -(-(at + CARD) // BLOCK) * BLOCK
            if stop > size:
                raise ManifestError(f"{where} is cut short: its header ends at byte {stop}, the file at {size}")
            cards |= {name: "".join(each) for name, each in texts.items() if each}
            cards |= {name or "BLANK_KEYWORD": "\n".join(lines) for name, lines in commentary.items() if any(lines)}
            return Header(start, stop, cards, where)
        if at >= MOST_HEADER:
            raise ManifestError(f"{where}: its header has no end within {MOST_HEADER} bytes")
        if keyword in _COMMENTARY:
            commentary.setdefault(keyword, []).append(card[8:].rstrip())
        elif keyword == "CONTINUE" and parts and parts[-1].endswith("&"):
            more = _value(card[8:])
            parts[-1:] = [parts[-1][:-1], more if isinstance(more, str) else ""]
        else:
            name, equals, text = card.partition("=")
            name = name.strip()
            if not equals or (len(name) > 8 and not name.startswith("HIERARCH ")):
                continue  # a card without a value
            name = name.removeprefix("HIERARCH ").strip()
            cards[name] = value = _value(text)
            parts = texts[name] = [value] if isinstance(value, str) else []
    if start + len(data) >= size:
        raise ManifestError(f"{where} is cut short: its header has no END before the file's end at byte {size}")
    raise Short


def _value(text: str) -> Any:
    """Return the value in a card, as JSON has it; None where it has none."""
    text = text.strip()
    if text.startswith("'"):
        found = _TEXT.match(text)
        if found is None:  # a text without an end
            return text
        return found[1].replace("''", "'").rstrip()
    text = text.partition("/")[0].strip()
    match text:
        case "T" | "F":
            return text == "T"
        case "":
            return None
    if text.startswith("("):
        parts = [_number(part) for part in text.strip("()").split(",")]
        return text if None in parts else parts
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    text = text.strip().replace("D", "E").replace("d", "e")
    if not re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[Ee][-+]?\d+)?", text, re.ASCII):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)

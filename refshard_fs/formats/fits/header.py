"""Parse the headers of a FITS file: cards of 80 characters in blocks of 2,880 bytes. No I/O here.

The names come from the FITS standard, version 4.0. A file is a sequence of HDUs, each a header and a data unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from refshard_fs.core.zarrmeta import COUNTABLE
from refshard_fs.errors import ManifestError

BLOCK: Final = 2880  # bytes; headers and data units fill whole blocks
CARD: Final = 80  # bytes
MOST_HEADER: Final = 64 << 20  # bytes of one header
MOST_AXES: Final = 32  # the limit of older numpy versions

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]+")  # characters of names that keys do not have
_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_COMMENTARY: Final = ("COMMENT", "HISTORY", "")
_BITPIX: Final = (8, 16, 32, 64, -32, -64)
# Keywords about the layout of headers and data units, which are not shown as attributes.
_STRUCTURAL: Final = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|TFIELDS|T(?:TYPE|FORM|UNIT|DIM|NULL|BCOL|SCAL|ZERO)\d+|THEAP|END|"
    r"ZIMAGE|ZSIMPLE|ZTENSION|ZEXTEND|ZPCOUNT|ZGCOUNT|ZBITPIX|ZNAXIS\d*|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+|ZQUANTIZ|"
    r"ZDITHER0|ZSCALE|ZZERO|ZBLANK|ZHECKSUM|ZDATASUM|CHECKSUM|DATASUM|BSCALE|BZERO|BLANK"
)


class Short(Exception):
    """The header continues after the given bytes."""


class Header(msgspec.Struct, frozen=True):
    """The header at ``start`` of a file: values by keyword (``cards``). Its data unit begins at ``stop``."""

    start: int
    stop: int
    cards: Mapping[str, Any]
    where: str

    def integer(self, keyword: str, default: int | None = None, least: int = 0) -> int:
        """Return the integer of a card. Raise ManifestError if it is not an integer of at least ``least``."""
        value = self.cards.get(keyword, default)
        if type(value) is not int or not least <= value < COUNTABLE:
            raise ManifestError(
                f"{self.where}: its {keyword} is {value!r}: expected an integer from {least} to 2**63-1"
            )
        return value

    def number(self, keyword: str, default: float) -> float:
        """Return the number of a card. Raise ManifestError if it is not a number."""
        value = self.cards.get(keyword, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ManifestError(f"{self.where}: its {keyword} is {value!r}: expected a number")
        return value

    def axes(self, prefix: str = "") -> tuple[int, ...]:
        """Return the lengths of the axes, the slowest first, as in numpy. ``prefix`` is Z for a compressed image."""
        count = self.integer(f"{prefix}NAXIS")
        if count > MOST_AXES:
            raise ManifestError(f"{self.where}: its {prefix}NAXIS is {count}: expected at most {MOST_AXES}")
        axes = tuple(self.integer(f"{prefix}NAXIS{axis}") for axis in range(count, 0, -1))
        if math.prod(axes) * 8 >= COUNTABLE:
            raise ManifestError(f"{self.where}: its axes {axes} have too many elements for 63 bits")
        return axes

    def bitpix(self, prefix: str = "") -> int:
        """Return the size of a number in bits; negative for floating point."""
        found = self.cards.get(f"{prefix}BITPIX")
        if type(found) is not int or found not in _BITPIX:
            raise ManifestError(f"{self.where}: its {prefix}BITPIX is {found!r}: expected one of {_BITPIX}")
        return found

    @property
    def data_size(self) -> int:
        """Size of the data unit in bytes, without the padding of its last block."""
        axes = self.axes()
        if self.cards.get("GROUPS") is True and axes and not axes[-1]:
            axes = axes[:-1]  # random groups: the first axis is not an axis of the data
        elements = math.prod(axes) if axes else 0
        parameters = self.integer("PCOUNT", 0) if axes else 0
        return abs(self.bitpix()) // 8 * self.integer("GCOUNT", 1) * (parameters + elements)

    @property
    def end(self) -> int:
        """Position of the next HDU."""
        return self.stop + -(-self.data_size // BLOCK) * BLOCK

    @property
    def attributes(self) -> dict[str, Any]:
        """The cards about the image and its origin."""
        return {name: value for name, value in self.cards.items() if not _STRUCTURAL.fullmatch(name)}


def parse_header(data: bytes, start: int, size: int, where: str) -> Header:
    """Parse the header at ``start`` of a file of ``size`` bytes; ``data`` are the bytes from there on.

    Raises `Short` if ``data`` are too few, and ManifestError if the header has no end or an invalid card.
    """
    cards: dict[str, Any] = {}
    commentary: dict[str, list[str]] = {}
    texts: dict[str, list[str]] = {}  # by keyword; a text may consist of several continued parts
    parts: list[str] = []
    for at in range(0, len(data) - CARD + 1, CARD):
        card = data[at : at + CARD].decode("latin-1")
        keyword = card[:8].rstrip()
        if keyword == "END":
            stop = start + -(-(at + CARD) // BLOCK) * BLOCK
            if stop > size:
                raise ManifestError(f"{where} is cut short: its header ends at byte {stop}, the file at byte {size}")
            cards |= {name: "".join(each) for name, each in texts.items() if each}
            cards |= {name or "BLANK_KEYWORD": "\n".join(lines) for name, lines in commentary.items() if any(lines)}
            return Header(start, stop, cards, where)
        if at and not at % BLOCK and keyword == "XTENSION":
            raise ManifestError(f"{where}: its header has no END before the next header, at byte {start + at}")
        if at >= MOST_HEADER:
            raise ManifestError(f"{where}: its header does not end within {MOST_HEADER} bytes")
        if keyword in _COMMENTARY:
            commentary.setdefault(keyword, []).append(card[8:].rstrip())
        elif keyword == "CONTINUE" and parts and parts[-1].endswith("&"):
            more = _parse_value(card[8:])
            parts[-1:] = [parts[-1][:-1], more if isinstance(more, str) else ""]
        else:
            name, equals, text = card.partition("=")
            name = name.strip()
            if not equals or (len(name) > 8 and not name.startswith("HIERARCH ")):
                continue  # a card without a value
            name = name.removeprefix("HIERARCH ").strip()
            cards[name] = value = _parse_value(text)
            parts = texts[name] = [value] if isinstance(value, str) else []
    if start + len(data) >= size:
        raise ManifestError(f"{where} is cut short: its header has no END before the end of the file at byte {size}")
    raise Short


def _parse_value(text: str) -> Any:
    """Return the value of a card as JSON; None for a card without a value."""
    text = text.strip()
    if text.startswith("'"):
        found = _TEXT.match(text)
        if found is None:  # the text has no closing quote
            return text
        return found[1].replace("''", "'").rstrip()
    text = text.partition("/")[0].strip()
    match text:
        case "T" | "F":
            return text == "T"
        case "":
            return None
    if text.startswith("("):
        parts = [_parse_number(part) for part in text.strip("()").split(",")]
        return text if None in parts else parts
    number = _parse_number(text)
    return text if number is None else number


def _parse_number(text: str) -> int | float | None:
    text = text.strip().replace("D", "E").replace("d", "e")
    if not re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[Ee][-+]?\d+)?", text, re.ASCII):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def make_name(value: Any) -> str:
    """Return the name of an array for the text of a card; "" if it has none."""
    name = _UNUSUAL.sub("_", value).strip(".") if isinstance(value, str) else ""
    return "" if name == "zarr.json" else name

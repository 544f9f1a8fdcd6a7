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
MOST_HEADER: Final = 64 << 20  # the most bytes of a header
MOST_AXES: Final = 32  # the limit of numpy 1

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]+")  # characters of EXTNAME or TTYPE that are replaced in keys
_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_COMMENTARY: Final = ("COMMENT", "HISTORY", "")
_BITPIX: Final = (8, 16, 32, 64, -32, -64)
# Keywords about the layout of headers and data units, which are not shown as attributes.
_STRUCTURAL: Final = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|EXTEND|PCOUNT|GCOUNT|GROUPS|TFIELDS|T(?:TYPE|FORM|UNIT|DIM|NULL|BCOL|SCAL|ZERO)\d+|THEAP|END|"
    r"ZIMAGE|ZSIMPLE|ZTENSION|ZEXTEND|ZPCOUNT|ZGCOUNT|ZBITPIX|ZNAXIS\d*|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+|ZQUANTIZ|"
    r"ZDITHER0|ZSCALE|ZZERO|ZBLANK|ZHECKSUM|ZDATASUM|CHECKSUM|DATASUM|BSCALE|BZERO|BLANK"
)


class HeaderIncomplete(Exception):
    """The header continues after the bytes that were passed to `parse_header`."""


class Header(msgspec.Struct, frozen=True):
    """The header of an HDU, from byte ``start`` of the file to byte ``stop``, where the data unit begins.

    ``cards`` are the values by keyword. ``where`` names the HDU at the beginning of errors.
    """

    start: int
    stop: int
    cards: Mapping[str, Any]
    where: str

    def get_integer(self, keyword: str, default: int | None = None, least: int = 0) -> int:
        """Return the integer of a card, or ``default`` without a card.

        Raise ManifestError if the value is not an integer, or is below ``least``.
        """
        value = self.cards.get(keyword, default)
        if type(value) is not int or not least <= value < COUNTABLE:
            raise ManifestError(
                f"{self.where}: its {keyword} is {value!r}: expected an integer from {least} to 2**63-1"
            )
        return value

    def get_number(self, keyword: str, default: float) -> float:
        """Return the number of a card, or ``default`` without a card. Raise ManifestError if it is not a number."""
        value = self.cards.get(keyword, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ManifestError(f"{self.where}: its {keyword} is {value!r}: expected a number")
        return value

    def get_axes(self, prefix: str = "") -> tuple[int, ...]:
        """Return the lengths of the axes in numpy's order. ``prefix`` is Z for a compressed image."""
        count = self.get_integer(f"{prefix}NAXIS")
        if count > MOST_AXES:
            raise ManifestError(f"{self.where}: its {prefix}NAXIS is {count}: expected at most {MOST_AXES}")
        axes = tuple(self.get_integer(f"{prefix}NAXIS{axis}") for axis in range(count, 0, -1))
        if math.prod(axes) * 8 >= COUNTABLE:
            raise ManifestError(f"{self.where}: its axes are {axes}: expected less than 2**60 elements")
        return axes

    def get_bitpix(self, prefix: str = "") -> int:
        """Return the size of a number in bits; a negative size means floating point."""
        bitpix = self.cards.get(f"{prefix}BITPIX")
        if type(bitpix) is not int or bitpix not in _BITPIX:
            raise ManifestError(f"{self.where}: its {prefix}BITPIX is {bitpix!r}: expected one of {_BITPIX}")
        return bitpix

    @property
    def data_size(self) -> int:
        """The size of the data unit in bytes, without the padding of its last block."""
        axes = self.get_axes()
        if self.cards.get("GROUPS") is True and axes and not axes[-1]:
            axes = axes[:-1]  # random groups: the first axis is not an axis of the data
        elements = math.prod(axes) if axes else 0
        parameters = self.get_integer("PCOUNT", 0) if axes else 0
        return abs(self.get_bitpix()) // 8 * self.get_integer("GCOUNT", 1) * (parameters + elements)

    @property
    def end(self) -> int:
        """The position of the next HDU in the file."""
        return self.stop + -(-self.data_size // BLOCK) * BLOCK

    @property
    def attributes(self) -> dict[str, Any]:
        """The cards that do not describe the layout of the file, as attributes."""
        return {name: value for name, value in self.cards.items() if not _STRUCTURAL.fullmatch(name)}


def parse_header(data: bytes, start: int, size: int, where: str) -> Header:
    """Parse the header at ``start`` of a file of ``size`` bytes. ``data`` are bytes from ``start`` on.

    Raises `HeaderIncomplete` if the header is longer than ``data``, and ManifestError if it has no END, or does not fit
    the file.
    """
    cards: dict[str, Any] = {}
    commentary: dict[str, list[str]] = {}
    texts: dict[str, list[str]] = {}  # keyword → parts of a text, which CONTINUE cards extend
    parts: list[str] = []  # the parts of the text of the last card
    for at in range(0, len(data) - CARD + 1, CARD):
        card = data[at : at + CARD].decode("latin-1")
        keyword = card[:8].rstrip()
        if keyword == "END":
            stop = start + -(-(at + CARD) // BLOCK) * BLOCK
            if stop > size:
                raise ManifestError(f"{where} is cut short: expected a header up to byte {stop}, found {size} bytes")
            cards |= {name: "".join(pieces) for name, pieces in texts.items() if pieces}
            cards |= {name or "BLANK_KEYWORD": "\n".join(lines) for name, lines in commentary.items() if any(lines)}
            return Header(start, stop, cards, where)
        if at and not at % BLOCK and keyword == "XTENSION":
            raise ManifestError(
                f"{where}: expected END before byte {start + at}, found the next header there: the header is damaged"
            )
        if at >= MOST_HEADER:
            raise ManifestError(f"{where}: expected END in the first {MOST_HEADER} bytes of its header, found none")
        if keyword in _COMMENTARY:
            commentary.setdefault(keyword, []).append(card[8:].rstrip())
        elif keyword == "CONTINUE" and parts and parts[-1].endswith("&"):
            more = _parse_value(card[8:])
            parts[-1:] = [parts[-1][:-1], more if isinstance(more, str) else ""]
        else:
            name, equals, text = card.partition("=")
            name = name.strip()
            if not equals or (len(name) > 8 and not name.startswith("HIERARCH ")):
                continue  # the card has no value
            name = name.removeprefix("HIERARCH ").strip()
            cards[name] = value = _parse_value(text)
            parts = texts[name] = [value] if isinstance(value, str) else []
    if start + len(data) >= size:
        raise ManifestError(f"{where} is cut short: expected END in its header, found the end of the file, byte {size}")
    raise HeaderIncomplete


def _parse_value(text: str) -> Any:
    """Return the value of a card as JSON; None for a card without a value. A complex number becomes a list of two."""
    text = text.strip()
    if text.startswith("'"):
        quoted = _TEXT.match(text)
        if quoted is None:  # the text has no closing quote
            return text
        return quoted[1].replace("''", "'").rstrip()
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
    """Return the number in a text; None if it is not a number."""
    text = text.strip().replace("D", "E").replace("d", "e")
    if not re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[Ee][-+]?\d+)?", text, re.ASCII):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def make_name(value: Any) -> str:
    """Turn the value of EXTNAME or TTYPE into the name of an array or a group; "" if that is not possible."""
    name = _UNUSUAL.sub("_", value).strip(".") if isinstance(value, str) else ""
    return "" if name == "zarr.json" else name

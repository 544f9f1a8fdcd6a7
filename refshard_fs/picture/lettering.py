"""How wide text will be, at most, whatever font a viewer has; and text cut to fit. No I/O here."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["shortened", "width_of"]

# Thousandths of the font size, for the characters from space to ~, in DejaVu Sans: hardly any sans serif is wider.
_WIDTHS: Final = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
)  # fmt: skip
_HINTED: Final = 1.02  # letters are moved to whole pixels
_BOLD: Final = 1.17
_OTHER: Final = 1000
_WIDE: Final = 1800  # full-width characters, and emoji
ELLIPSIS: Final = "…"


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of ``text`` at a font size, in the unit of that size."""
    total = sum(map(_width, text))
    return total * size / 1000 * _HINTED * (_BOLD if bold else 1)


def shortened(text: str, size: float, room: float, *, bold: bool = False, keep_end: bool = False) -> str:
    """Return ``text``, or what fits of its start (``keep_end``: of its end) with an ellipsis; "" if nothing does."""
    if width_of(text, size, bold=bold) <= room:
        return text
    left = room - width_of(ELLIPSIS, size, bold=bold)
    kept: list[str] = []
    for char in reversed(text) if keep_end else text:
        left -= width_of(char, size, bold=bold)
        if left < 0:
            break
        kept.append(char)
    if not kept:
        return ""
    return ELLIPSIS + "".join(reversed(kept)) if keep_end else "".join(kept).rstrip() + ELLIPSIS


def _width(char: str) -> int:
    code = ord(char) - 32
    if 0 <= code < len(_WIDTHS):
        return _WIDTHS[code]
    return _WIDE if unicodedata.east_asian_width(char) in "WF" or code > 0xFFFF else _OTHER

"""Measure the greatest width of a text in any font of the viewer, and cut texts to fit. No I/O here."""

from __future__ import annotations

import unicodedata
from itertools import accumulate
from typing import Final

# The greatest widths of characters, in font sizes, in sans-serif fonts that are not wider than DejaVu Sans.
_WIDTHS: Final = dict.fromkeys(" !'(),-./:;I[\\]fijlrt|·", 0.43) | dict.fromkeys("#%&+<=>@MOQW^mw~", 1.02)
BOLD: Final = 1.17


def measure_text(text: str, size: float = 13, *, bold: bool = False) -> float:
    """Return the greatest width of one line of ``text`` at a font ``size``, in the unit of ``size``."""
    return sum(map(_find_width, text)) * size * (BOLD if bold else 1)


def _find_width(char: str) -> float:
    if char in _WIDTHS:
        return _WIDTHS[char]
    if char < "\x7f":
        return 0.8 if char.isupper() else 0.66
    is_wide = unicodedata.east_asian_width(char) in "WF" or ord(char) > 0xFFFF  # such as emoji
    return 1.8 if is_wide else 1.0


def shorten_text(text: str, room: float, *, keep_end: bool) -> str:
    """Return ``text``, cut with an ellipsis to fit ``room``, which is in font sizes; "" if nothing fits.

    The start of the text is kept, or with ``keep_end`` its end.
    """
    if measure_text(text, 1) <= room:
        return text
    ends = accumulate(map(_find_width, reversed(text) if keep_end else text), initial=_find_width("…"))
    kept = sum(end <= room for end in ends) - 1
    if kept < 1:
        return ""
    return "…" + text[-kept:] if keep_end else text[:kept].rstrip() + "…"

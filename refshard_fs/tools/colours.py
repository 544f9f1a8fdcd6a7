"""Colours of pictures: a fill is #rrggbb, or a role of `ROLES`, which has other colours by night. No I/O here."""

from __future__ import annotations

from html import escape
from typing import Final

from refshard_fs.tools.views import ROLES

# Hues that differ in all common kinds of colour blindness (after M. Okabe and K. Ito), without black.
HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")


# Lightness rises from one end to the other, so that the order is visible in any kind of colour blindness.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")


def pick_shade(position: float) -> str:
    """Return the colour at ``position``, 0 to 1, of the ramp."""
    at = position * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    return mix_colours(_RAMP[first], _RAMP[first + 1], at - first)


def mix_colours(one: str, other: str, share: float) -> str:
    """Return ``one`` with a ``share`` of ``other``, both as #rrggbb."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def resolve_by_day(colour: str) -> str:
    """Return the colour of a fill by day, for formats without styles; "none" for an empty fill."""
    return ROLES[colour][0] if colour in ROLES else escape(colour) or "none"

"""Colours that tell files apart, also for the colour-blind; and those of paper and ink, by day and by night. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["DARK", "FEW", "LIGHT", "file_colours", "mixed", "ramp"]

# Eight hues that stay apart in all common kinds of colour blindness (after M. Okabe and K. Ito), less black.
_HUES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800")
FEW: Final = len(_HUES)

# For many files, from the first to the last: lightness rises all the way, so that order shows in any eye.
_RAMP: Final = ("#2b2a6b", "#33508d", "#2b7a91", "#2fa386", "#7cc36a", "#d5d84a", "#fde87a")

LIGHT: Final = {
    "paper": "#ffffff",
    "edge": "#d8dee4",
    "ink": "#1f2328",
    "muted": "#59636e",
    "faint": "#eef1f4",
    "rule": "#c3cbd3",
    "asked": "#c2185b",
    "inline": "#8b949e",
}
DARK: Final = {
    "paper": "#14181d",
    "edge": "#2c333b",
    "ink": "#e6edf3",
    "muted": "#9aa5b1",
    "faint": "#232a31",
    "rule": "#46505b",
    "asked": "#ff6fa5",
    "inline": "#7d8792",
}


def file_colours(count: int) -> list[str]:
    """Return a colour for each of ``count`` files: hues for a few, a ramp for many."""
    if count <= FEW:
        return list(_HUES[:count])
    return [ramp(i / (count - 1)) for i in range(count)]


def ramp(position: float) -> str:
    """Return the colour at ``position``, 0 to 1, of the ramp."""
    at = min(max(position, 0.0), 1.0) * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    return mixed(_RAMP[first], _RAMP[first + 1], at - first)


def mixed(one: str, other: str, share: float) -> str:
    """Return ``one`` with a ``share`` of ``other``, both as #rrggbb."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)

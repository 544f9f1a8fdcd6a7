"""Files whose names give their place along dimensions: ``"{member}/{time:%Y%m%d}.nc"``. No I/O here.

A field names a dimension, whose values are texts, whole numbers (``{member:d}``; ``{step:03d}`` with at least 3 digits)
or times (``{time:%Y%m%d}``). A time may be spread over several fields: ``{time:%Y}/{time:%m%d}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

_FIELD: Final = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


_INTEGER: Final = re.compile(r"0?(\d*)d?")  # "d", "03d" or "03": a whole number of at least so many digits


_DIRECTIVE: Final = re.compile(r"%(.)")


# The digits that directives of times match.
_DIGITS: Final = {"Y": r"\d{4}", "j": r"\d{3}", **dict.fromkeys("mdHMS", r"\d{2}")}


FileCoordinate = datetime | int | float | str  # the coordinate of a file along a dimension


class Pattern(NamedTuple):
    """A pattern with fields: a glob pattern that finds the files, and a regular expression that reads their names."""

    text: str
    glob: str
    names: re.Pattern[str]
    fields: Mapping[str, str]  # "text", "number" or "time", by dimension

    @classmethod
    def of(cls, text: str, dims: Sequence[str | None] | None) -> Pattern | None:
        """Parse a pattern; None if ``text`` has no fields. ValueError unless the fields are the dimensions ``dims``.

        If ``dims`` is None, the fields are the dimensions, in their order. If ``dims`` has no names, return None.
        """
        if _FIELD.search(text) is None or (dims is not None and not any(dims)):
            return None
        if "{" in _FIELD.sub("", text):
            raise ValueError(f"{text!r} has a '{{' outside of its fields: expected '}}' after the name of each field")
        fields: dict[str, str] = {}
        seen: set[str] = set()
        regex, at = "", 0
        for match in _FIELD.finditer(text):
            regex += _escape_literal(text[at : match.start()])
            name, form = match[1], match[2] or ""
            digits = _INTEGER.fullmatch(form)
            kind = "time" if "%" in form else "number" if form and digits else "text"
            if (form and kind == "text") or fields.setdefault(name, kind) != kind:
                raise ValueError(
                    f"{match[0]!r} in {text!r}: expected {{name}}, {{name:d}}, {{name:03d}} or {{name:%Y%m%d}}"
                )
            if kind == "time":
                regex += _parse_times(form, name, seen)
            else:
                number = rf"\d{{{digits[1] or 1},}}" if digits else ""
                regex += _group_once(name, number if form else r"[^/]+", seen)
            at = match.end()
        if dims is not None and set(fields) != set(dims):
            raise ValueError(
                f"{text!r} has the fields {', '.join(fields)}: expected a field for each of the dimensions {list(dims)}"
            )
        names = re.compile(regex + _escape_literal(text[at:]) + r"\Z")
        return cls(text, re.sub(r"\*+", "*", _FIELD.sub("*", text)), names, fields)

    def parse_places(self, name: str) -> dict[str, FileCoordinate] | None:
        """Return the place of the file ``name`` along each dimension; None if the pattern does not match."""
        match = self.names.search(name)
        if match is None:
            return None
        groups = match.groupdict()
        try:
            return {dim: _parse_place(dim, kind, groups) for dim, kind in self.fields.items()}
        except ValueError:  # the month has no such day
            return None


def _escape_literal(text: str) -> str:
    return re.escape(text).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")


def _group_once(name: str, regex: str, seen: set[str]) -> str:
    if name in seen:
        return f"(?P={name})"
    seen.add(name)
    return f"(?P<{name}>{regex})"


def _parse_times(form: str, name: str, seen: set[str]) -> str:
    regex, at = "", 0
    for match in _DIRECTIVE.finditer(form):
        if match[1] not in _DIGITS:
            raise ValueError(f"{match[0]!r} in {form!r}: expected %{', %'.join(_DIGITS)}")
        regex += re.escape(form[at : match.start()]) + _group_once(f"{name}__{match[1]}", _DIGITS[match[1]], seen)
        at = match.end()
    return regex + re.escape(form[at:])


def _parse_place(dim: str, kind: str, groups: Mapping[str, str]) -> FileCoordinate:
    if kind == "text":
        return groups[dim]
    if kind == "number":
        return int(groups[dim])
    parts = {letter: int(groups[f"{dim}__{letter}"]) for letter in _DIGITS if f"{dim}__{letter}" in groups}
    hour, minute, second = (parts.get(letter, 0) for letter in "HMS")
    year = parts.get("Y", 1970)
    if "j" not in parts:
        return datetime(year, parts.get("m", 1), parts.get("d", 1), hour, minute, second, tzinfo=UTC)
    day = datetime(year, 1, 1, hour, minute, second, tzinfo=UTC) + timedelta(days=parts["j"] - 1)
    if day.year != year:
        raise ValueError(f"expected a day of the year {year}, got {parts['j']}")
    return day

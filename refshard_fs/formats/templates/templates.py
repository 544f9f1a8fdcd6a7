"""Kerchunk v1 templates and `gen`: what a manifest wrote short, written out. A manifest cannot run code here. No I/O.

By default templates are the small language of `expressions`; with ``simple=False`` they are jinja2's, in its sandbox,
for manifests that the user trusts.
Either way an undefined name is an error, where jinja would leave a hole in the URL.
Source: the kerchunk "References specification", version 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.expressions import (
    INTEGER_WIDTH,
    INTEGERS,
    Column,
    Compiler,
    Rows,
    Source,
    TemplateLimits,
    clip,
    texts,
)

DEFAULT_LIMITS: Final = TemplateLimits()
ROWS: Final = 8192  # keys generated at a time,
CHARACTERS: Final = 1 << 24  # or fewer, where they may get this long together

Generated = tuple[str, str, int | None, int | None]


class _Engine(Protocol):
    def compile(self, source: Source, variables: Mapping[str, Column]) -> Column:
        """Return the column that ``source`` expands to."""


class Templates:
    """The templates of one manifest. Thread-safe.

    ``definitions`` are the manifest's, and ``overrides`` the reader's, which win. A template that itself holds
    ``{{name}}`` takes ``name`` as a keyword argument, unless another template has that name; arguments a template has
    no use for are ignored, as by jinja. Raises ManifestError where a definition is no text.

    >>> Templates({"u": "s3://bucket", "f": "{{u}}/{{c}}.nc"}).expand("{{ f(c='a') }}")
    's3://bucket/a.nc'
    """

    def __init__(
        self,
        definitions: Mapping[str, str],
        overrides: Mapping[str, str] | None = None,
        *,
        simple: bool = True,
        limits: TemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self._sources = {
            name: _definition(name, text) for name, text in chain(definitions.items(), (overrides or {}).items())
        }
        self._engine: _Engine = Compiler(self._sources, limits) if simple else _jinja(self._sources, limits)
        self._expanded_text = 0

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def expand(self, text: str) -> str:
        """Return ``text`` with every ``{{ }}`` replaced by its value; ManifestError where that is not possible.

        Text without ``{{`` is returned as it is.
        """
        if "{{" not in text:
            return text
        found = next(iter(texts(self.compile(text, {}), Rows(1, {}))))
        self._expanded_text += len(found)
        if self._expanded_text > self.limits.expanded_text:
            raise ManifestError(f"all texts expand to more than {self.limits.expanded_text} characters")
        return found

    def compile(self, text: str, variables: Mapping[str, Column]) -> Column:
        """Return the column that ``text`` expands to."""
        return self._engine.compile(Source(text), variables)


def _jinja(sources: Mapping[str, Source], limits: TemplateLimits) -> _Engine:
    try:
        from refshard_fs.formats.templates.jinja import JinjaCompiler  # jinja2 is an extra
    except ImportError as error:
        if error.name != "jinja2":
            raise
        raise ImportError("simple_templates=False needs jinja2: pip install 'refshard_fs[jinja]'") from error
    return JinjaCompiler(sources, limits)


def _definition(name: object, text: object) -> Source:
    match name, text:
        case str(), str():
            return Source(text, f"template {name!r}")
    raise ManifestError(f"template {clip(str(name))!r}: a template is text, not {type(text).__name__}")


class _Steps(msgspec.Struct, frozen=True):
    stop: int
    start: int = 0
    step: int = 1


class _GenEntry(msgspec.Struct, frozen=True):
    """One entry of `gen` as it stands in JSON; fields that the specification does not name are ignored."""

    key: str
    url: str
    dimensions: dict[str, list[int] | _Steps]
    offset: int | str | None = None
    length: int | str | None = None


class _Plan(msgspec.Struct, frozen=True):
    """One entry of `gen`, checked and compiled."""

    where: str
    dimensions: Mapping[str, Sequence[int]]
    count: int
    key: Column
    url: Column
    offset: Column | None
    length: Column | None

    @property
    def columns(self) -> list[Column]:
        return [column for column in (self.key, self.url, self.offset, self.length) if column is not None]


def expand_gen(
    entries: Sequence[object], templates: Templates, *, limits: TemplateLimits | None = None
) -> Iterator[Generated]:
    """Return an iterator of (key, url, offset, length) for every combination of every entry's dimensions.

    The last dimension varies fastest, as in itertools.product; a key may come twice, and the last one counts. All
    entries are checked before this returns; ManifestError, which names the entry's index and key, where one does not
    follow the specification or goes beyond ``limits`` (by default, those of ``templates``). A ``step`` may be
    negative, as in a Python range; an offset or a length may be an integer in place of a template.
    """
    limits = limits or templates.limits
    plans = [_plan(number, entry, templates) for number, entry in enumerate(entries)]
    total = sum(plan.count for plan in plans)
    if total > limits.generated:
        raise ManifestError(f"gen: it stands for {total} keys, and limits.generated allows {limits.generated}")
    steps = sum(plan.count * sum(column.steps for column in plan.columns) for plan in plans)
    if steps > limits.generated_steps:
        raise ManifestError(f"gen: it takes {steps} operations, and limits.generated_steps allows fewer")
    return _generate(plans, limits)


def _plan(number: int, entry: object, templates: Templates) -> _Plan:
    match entry:
        case {"key": str(key)}:
            where = f"gen[{number}] (key {clip(key)!r})"
        case _:
            where = f"gen[{number}]"
    try:
        checked = msgspec.convert(entry, _GenEntry)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter of half a surrogate pair
        raise ManifestError(f"{where}: {clip(_plain(error), 400)}") from None
    if (checked.offset is None) != (checked.length is None):
        there, missing = ("length", "offset") if checked.offset is None else ("offset", "length")
        raise ManifestError(f"{where}: it has {there!r} but no {missing!r}; both are needed, or neither")
    dimensions = {
        name: _dimension(f"{where}: dimension {clip(name)!r}", spec) for name, spec in checked.dimensions.items()
    }
    for name in dimensions:
        if name in templates:
            raise ManifestError(f"{where}: {clip(name)!r} is the name of a dimension and of a template")
    variables: dict[str, Column] = {name: _dimension_column(name) for name in dimensions}

    def column(field: str, text: str) -> Column:
        try:
            return templates.compile(text, variables)
        except ManifestError as error:
            raise ManifestError(f"{where}: {field}: {error}") from None

    def number_column(field: str, value: int | str | None) -> Column | None:
        match value:
            case None:
                return None
            case int():
                if value not in INTEGERS:
                    raise ManifestError(f"{where}: {field}: it is more than 64 bits hold")
                return Column.constant(value)
            case str():
                return column(field, value)

    return _Plan(
        where,
        dimensions,
        math.prod(map(_count, dimensions.values())),
        column("key", checked.key),
        column("url", checked.url),
        number_column("offset", checked.offset),
        number_column("length", checked.length),
    )


def _plain(error: Exception) -> str:
    """Say what msgspec found without its notation for JSON paths."""
    reason, _, path = str(error).partition(" - at `$.")
    return f"{reason[0].lower()}{reason[1:]}" + (f" in {path.rstrip('`')}" if path else "")


def _dimension(where: str, spec: list[int] | _Steps) -> Sequence[int]:
    match spec:
        case list():
            values: Sequence[int] = spec
            bounds: Iterable[int] = spec
        case _Steps(stop, start, step):
            if step == 0:
                raise ManifestError(f"{where}: its step is 0")
            bounds = (stop, start, step)
            values = range(start, stop, step)
    if not all(bound in INTEGERS for bound in bounds):
        raise ManifestError(f"{where}: it has an integer that is more than 64 bits hold")
    return values


def _dimension_column(name: str) -> Column:
    return Column("integer", INTEGER_WIDTH, lambda rows: rows.columns[name], 1, 1)


def _count(values: Sequence[int]) -> int:
    """Return len(values), also where a range is longer than len() can say."""
    match values:
        case range(start=start, stop=stop, step=step):
            return max(0, -((start - stop) // step))
    return len(values)


def _blocks(plan: _Plan, size: int) -> Iterator[Rows]:
    """Yield all combinations of dimensions, the last varying fastest, ``size`` rows at a time."""
    counts = tuple(map(_count, plan.dimensions.values()))
    for start in range(0, plan.count, size):
        numbers = np.arange(start, min(start + size, plan.count))
        places = np.unravel_index(numbers, counts) if counts else ()
        columns = {
            name: list(map(values.__getitem__, column.tolist()))
            for (name, values), column in zip(plan.dimensions.items(), places, strict=True)
        }
        yield Rows(len(numbers), columns)


def _generate(plans: Sequence[_Plan], limits: TemplateLimits) -> Iterator[Generated]:
    text = 0
    for plan in plans:
        size = max(1, min(ROWS, CHARACTERS // max(1, sum(column.width for column in plan.columns))))
        for rows in _blocks(plan, size) if plan.count else ():
            try:
                keys, urls = list(texts(plan.key, rows)), list(texts(plan.url, rows))
                offsets, lengths = _numbers("offset", plan.offset, rows), _numbers("length", plan.length, rows)
            except ManifestError as error:
                raise ManifestError(f"{plan.where}: {error}") from None
            text += sum(map(len, keys)) + (sum(map(len, urls)) if plan.url.steps else 0)
            if text > limits.generated_text:
                raise ManifestError(f"{plan.where}: gen makes more than {limits.generated_text} characters")
            yield from zip(keys, urls, offsets, lengths, strict=True)


def _numbers(field: str, column: Column | None, rows: Rows) -> Sequence[int] | Sequence[None]:
    """Return offsets or lengths: integers that are not negative, whether computed or spelled."""
    if column is None:
        return [None] * rows.count
    values: list[Any] = list(column.run(rows))
    if column.kind == "text":
        values = [_spelled(field, value, rows, row) for row, value in enumerate(values)]
    if values and (min(values) < 0 or max(values) not in INTEGERS):
        row = next(row for row, value in enumerate(values) if value < 0 or value not in INTEGERS)
        raise ManifestError(f"{field}: {values[row]} is not in 0..2**63-1{_at(rows, row)}")
    return values


def _spelled(field: str, text: str, rows: Rows, row: int) -> int:
    digits = text.strip()
    if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) <= 20:
        return int(digits)
    raise ManifestError(f"{field}: {text[:80]!r} is not an integer{_at(rows, row)}")


def _at(rows: Rows, row: int) -> str:
    where = rows.at(row)
    return f" at {where}" if where else ""

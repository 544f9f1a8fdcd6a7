"""Kerchunk v1 templates and `gen`: what a manifest wrote short, written out. A manifest cannot run code here. No I/O.

By default templates are the small language of `expressions`; with ``simple=False`` they are jinja2's, in its sandbox,
for manifests that the user trusts.
Either way an undefined name is an error, where jinja would leave a hole in the URL.
Source: the kerchunk "References specification", version 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from refshard_fs.errors import DivisionByZero, ManifestError
from refshard_fs.formats.templates.expressions import (
    INTEGERS,
    Column,
    Rows,
    SimpleExpander,
    Source,
    Spent,
    TemplateLimits,
    clip,
)

DEFAULT_LIMITS: Final = TemplateLimits()
COMPILED: Final = 256  # templates that jinja2 has compiled and that are remembered
ROWS: Final = 8192  # keys generated at a time,
CHARACTERS: Final = 1 << 24  # or fewer, where they may get this long together
_WIDEST: Final = 20  # characters of -2**63: no text is this many times as long as it is in another row

Generated = tuple[str, str, int | None, int | None]


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
        self._expander = (SimpleExpander if simple else JinjaExpander)(self._sources, limits)
        self._spent = Spent()  # for all texts,
        self._given = 0  # which have so many characters

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def expand(self, text: str) -> str:
        """Return ``text`` with every ``{{ }}`` replaced by its value; ManifestError where that is not possible.

        Text without ``{{`` is returned as it is.
        """
        if "{{" not in text:
            return text
        spent = Spent()
        found = str(self.column(text, Rows(1, {}), spent)[0])
        self._spent.steps += spent.steps
        self._spent.characters += len(found)
        self._given += len(text)
        if self._spent.steps > self.limits.expanded_steps:
            raise ManifestError("all texts take more operations than limits.expanded_steps allows")
        most = max(self.limits.expanded_text, self.limits.swells * self._given)
        if self._spent.characters > most:
            raise ManifestError(f"all texts expand to more than {most} characters")
        return found

    def column(self, text: str, rows: Rows, spent: Spent) -> Column:
        """Return what ``text`` expands to in each row, integers if it is one integer."""
        return self._expander.column(Source(text), rows, spent)


class JinjaExpander:
    """Expands texts by jinja2, in its own sandbox; see `SimpleExpander`.

    A template that holds ``{{`` is called with keyword arguments, others are texts. The sandbox keeps templates from
    Python's objects. Time and memory it does not bound, so this is for manifests that the user trusts: whoever opens a
    manifest sees to that.
    """

    def __init__(self, definitions: Mapping[str, Source], limits: TemplateLimits) -> None:
        try:
            import jinja2.sandbox  # an extra
        except ImportError as error:
            raise ImportError("simple_templates=False needs jinja2: pip install 'refshard_fs[jinja]'") from error
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        )
        self._template = lru_cache(COMPILED)(environment.from_string)
        self._limits = limits
        self._names = {
            name: self._function(source) if "{{" in source.text else source.text for name, source in definitions.items()
        }

    def column(self, source: Source, rows: Rows, spent: Spent) -> Column:
        spent.steps += 1
        spent.characters += self._limits.output
        variables = ({name: column[row] for name, column in rows.columns.items()} for row in range(rows.count))
        return [self._render(source, some) for some in variables]

    def _function(self, source: Source) -> Callable[..., str]:
        return lambda **arguments: self._render(source, arguments)

    def _render(self, source: Source, variables: Mapping[str, Any]) -> str:
        try:
            text = self._template(source.text).render({**self._names, **variables})
        except ManifestError:
            raise
        except ZeroDivisionError as error:
            raise DivisionByZero(str(source.error(None, str(error)))) from error
        except RecursionError:
            raise source.error(None, "its templates nest too deep, or one of them uses itself") from None
        except Exception as error:  # a template may raise what Python's operators and methods do
            raise source.error(None, str(error) or type(error).__name__) from error
        if len(text) > self._limits.output:
            raise source.error(None, f"the text is longer than {self._limits.output} characters")
        return text


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
    """One entry of `gen`, checked: its texts expand for the first of ``count`` keys, each of which takes ``spent``."""

    where: str
    entry: _GenEntry
    dimensions: Mapping[str, Sequence[int]]
    count: int
    spent: Spent


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
    steps = sum(plan.count * plan.spent.steps for plan in plans)
    if steps > limits.generated_steps:
        raise ManifestError(f"gen: it takes {steps} operations, and limits.generated_steps allows fewer")
    return _generate(plans, templates, limits)


def _plan(number: int, spelled: object, templates: Templates) -> _Plan:
    match spelled:
        case {"key": str(key)}:
            where = f"gen[{number}] (key {clip(key)!r})"
        case _:
            where = f"gen[{number}]"
    try:
        entry = msgspec.convert(spelled, _GenEntry)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter of half a surrogate pair
        raise ManifestError(f"{where}: {clip(_plain(error), 400)}") from None
    if (entry.offset is None) != (entry.length is None):
        there, missing = ("length", "offset") if entry.offset is None else ("offset", "length")
        raise ManifestError(f"{where}: it has {there!r} but no {missing!r}; both are needed, or neither")
    dimensions = {
        name: _dimension(f"{where}: dimension {clip(name)!r}", spec) for name, spec in entry.dimensions.items()
    }
    for name in dimensions:
        if name in templates:
            raise ManifestError(f"{where}: {clip(name)!r} is the name of a dimension and of a template")
    spent = Spent()
    count = math.prod(map(_count, dimensions.values()))
    if count:
        first = Rows(1, {name: values[:1] for name, values in dimensions.items()})
        _generated(where, entry, first, templates, spent)
    return _Plan(where, entry, dimensions, count, spent)


def _plain(error: Exception) -> str:
    """Say what msgspec found without its notation for JSON paths."""
    reason, _, path = str(error).partition(" - at `$.")
    return f"{reason[0].lower()}{reason[1:]}" + (f" in {path.rstrip('`')}" if path else "")


def _dimension(where: str, spec: list[int] | _Steps) -> Sequence[int]:
    match spec:
        case list():
            values: Sequence[int] = spec
            bounds = spec
        case _Steps(stop, start, step):
            if step == 0:
                raise ManifestError(f"{where}: its step is 0")
            bounds = [stop, start, step]
            values = range(start, stop, step)
    if not all(bound in INTEGERS for bound in bounds):
        raise ManifestError(f"{where}: it has an integer that is more than 64 bits hold")
    return values


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


def _generate(plans: Sequence[_Plan], templates: Templates, limits: TemplateLimits) -> Iterator[Generated]:
    characters = 0
    for plan in plans:
        size = max(1, min(ROWS, CHARACTERS // max(1, _WIDEST * plan.spent.characters)))
        for rows in _blocks(plan, size):
            keys, urls, offsets, lengths = _generated(plan.where, plan.entry, rows, templates, Spent())
            characters += sum(map(len, keys)) + (sum(map(len, urls)) if "{{" in plan.entry.url else 0)
            if characters > limits.generated_text:
                raise ManifestError(f"{plan.where}: gen makes more than {limits.generated_text} characters")
            yield from zip(keys, urls, offsets, lengths, strict=True)


def _generated(
    where: str, entry: _GenEntry, rows: Rows, templates: Templates, spent: Spent
) -> tuple[Sequence[str], Sequence[str], Column, Column]:
    """Return keys, URLs, offsets and lengths of some rows."""
    fields: dict[str, Column] = {}
    for field, value in msgspec.structs.asdict(entry).items():
        try:
            match value:
                case str():
                    fields[field] = templates.column(value, rows, spent)
                case int() if value not in INTEGERS:
                    raise ManifestError("it is more than 64 bits hold")
                case int() | None:
                    fields[field] = [value] * rows.count
            if field in ("offset", "length") and value is not None:
                fields[field] = _numbers(fields[field], rows)
        except ManifestError as error:
            raise type(error)(f"{where}: {field}: {error}") from None
    return list(map(str, fields["key"])), list(map(str, fields["url"])), fields["offset"], fields["length"]


def _numbers(column: Column, rows: Rows) -> Column:
    """Return offsets or lengths: integers that are not negative, whether computed or spelled."""
    if isinstance(column[0], str):
        column = [_spelled(text, rows, row) for row, text in enumerate(column)]
    if min(column) < 0 or max(column) not in INTEGERS:
        row = next(row for row, value in enumerate(column) if value < 0 or value not in INTEGERS)
        raise ManifestError(f"{column[row]} is not in 0..2**63-1{rows.at(row)}")
    return column


def _spelled(text: str, rows: Rows, row: int) -> int:
    digits = text.strip()
    if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) <= 20:
        return int(digits)
    raise ManifestError(f"{text[:80]!r} is not an integer{rows.at(row)}")

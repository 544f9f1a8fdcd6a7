"""Expand templates and `gen` of kerchunk's sets of version 1. A manifest cannot run code here. No I/O here.

By default, templates use the small language of `expressions`; with ``simple=False``, jinja2 in its sandbox, for
manifests that the user trusts. In both, an undefined name is an error; plain jinja would leave a gap in the URL.
Specification: kerchunk's "References specification", version 1.
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
    Spent,
    TemplateLimits,
    TemplateText,
    clip,
)

DEFAULT_LIMITS: Final = TemplateLimits()
COMPILED: Final = 256  # size of the cache of templates that jinja2 compiled
ROWS: Final = 8192  # keys that are generated at a time,
CHARACTERS: Final = 1 << 24  # or fewer, so that they have at most this many characters together
_WIDEST: Final = 20  # characters of -2**63: a text is at most this many times longer in one row than in another

Generated = tuple[str, str, int | None, int | None]


class Templates:
    """The templates of one manifest. Thread-safe.

    ``definitions`` are the manifest's, and ``overrides`` the reader's, which take precedence. A template with
    ``{{name}}`` takes ``name`` as a keyword argument, unless another template has that name. As in jinja, a template
    ignores arguments that it does not use. Raises ManifestError if a definition is not text.

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
            name: _check_definition(name, text) for name, text in chain(definitions.items(), (overrides or {}).items())
        }
        self._expander = (SimpleExpander if simple else JinjaExpander)(self._sources, limits)
        self._spent = Spent()  # for all texts
        self._given = 0  # characters of all these texts

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def expand(self, text: str) -> str:
        """Replace every ``{{ }}`` in ``text`` by its value. Raise ManifestError if that is impossible.

        A text without ``{{`` is returned unchanged.
        """
        if "{{" not in text:
            return text
        spent = Spent()
        found = str(self.column(text, Rows(1, {}), spent)[0])
        self._spent.steps += spent.steps
        self._spent.characters += len(found)
        self._given += len(text)
        if self._spent.steps > self.limits.expanded_steps:
            raise ManifestError("all texts together take more operations than limits.expanded_steps")
        most = max(self.limits.expanded_text, self.limits.swells * self._given)
        if self._spent.characters > most:
            raise ManifestError(f"all texts together expand to more than {most} characters")
        return found

    def column(self, text: str, rows: Rows, spent: Spent) -> Column:
        """Expand ``text`` in each row, to integers if it is a single integer expression."""
        return self._expander.column(TemplateText(text), rows, spent)


class JinjaExpander:
    """Expands texts with jinja2 in its own sandbox; see `SimpleExpander`.

    A template with ``{{`` is a function of keyword arguments, any other is a text. The sandbox hides Python's objects
    from templates, but it does not bound time and memory. So this is only for trusted manifests; the caller checks
    that.
    """

    def __init__(self, definitions: Mapping[str, TemplateText], limits: TemplateLimits) -> None:
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
            name: self._make_function(source) if "{{" in source.text else source.text
            for name, source in definitions.items()
        }

    def column(self, source: TemplateText, rows: Rows, spent: Spent) -> Column:
        spent.steps += 1
        spent.characters += self._limits.output
        variables = ({name: column[row] for name, column in rows.columns.items()} for row in range(rows.count))
        return [self._render(source, some) for some in variables]

    def _make_function(self, source: TemplateText) -> Callable[..., str]:
        return lambda **arguments: self._render(source, arguments)

    def _render(self, source: TemplateText, variables: Mapping[str, Any]) -> str:
        try:
            text = self._template(source.text).render({**self._names, **variables})
        except ManifestError:
            raise
        except ZeroDivisionError as error:
            raise DivisionByZero(str(source.error(None, str(error)))) from error
        except RecursionError:
            raise source.error(None, "its templates are nested too deeply, or one of them uses itself") from None
        except Exception as error:  # templates raise the errors of Python's operators and methods
            raise source.error(None, str(error) or type(error).__name__) from error
        if len(text) > self._limits.output:
            raise source.error(None, f"the expanded text has more than {self._limits.output} characters")
        return text


def _check_definition(name: object, text: object) -> TemplateText:
    match name, text:
        case str(), str():
            return TemplateText(text, f"template {name!r}")
    raise ManifestError(f"template {clip(str(name))!r}: expected text, found {type(text).__name__}")


class _Steps(msgspec.Struct, frozen=True):
    stop: int
    start: int = 0
    step: int = 1


class _GenEntry(msgspec.Struct, frozen=True):
    """One entry of `gen`; fields that the specification does not define are ignored."""

    key: str
    url: str
    dimensions: dict[str, list[int] | _Steps]
    offset: int | str | None = None
    length: int | str | None = None


class _Plan(msgspec.Struct, frozen=True):
    """One checked entry of `gen`: its texts expand for the first of ``count`` keys, and each key costs ``spent``."""

    where: str
    entry: _GenEntry
    dimensions: Mapping[str, Sequence[int]]
    count: int
    spent: Spent


def expand_gen(
    entries: Sequence[object], templates: Templates, *, limits: TemplateLimits | None = None
) -> Iterator[Generated]:
    """Yield (key, url, offset, length) for every combination of every entry's dimensions.

    The last dimension varies fastest, as in itertools.product. A key may come twice; the last one counts. All entries
    are checked before the first is returned: ManifestError, with the entry's index and key, if one breaks the
    specification or exceeds ``limits`` (default: those of ``templates``). A ``step`` may be negative, as in a Python
    range. An offset or a length may be an integer in place of a template.
    """
    limits = limits or templates.limits
    plans = [_check_entry(number, entry, templates) for number, entry in enumerate(entries)]
    total = sum(plan.count for plan in plans)
    if total > limits.generated:
        raise ManifestError(f"gen: it expands to {total} keys: expected at most {limits.generated} (limits.generated)")
    steps = sum(plan.count * plan.spent.steps for plan in plans)
    if steps > limits.generated_steps:
        raise ManifestError(f"gen: it takes {steps} operations: limits.generated_steps allows {limits.generated_steps}")
    return _generate(plans, templates, limits)


def _check_entry(number: int, spelled: object, templates: Templates) -> _Plan:
    match spelled:
        case {"key": str(key)}:
            where = f"gen[{number}] (key {clip(key)!r})"
        case _:
            where = f"gen[{number}]"
    try:
        entry = msgspec.convert(spelled, _GenEntry)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError: half of a surrogate pair
        raise ManifestError(f"{where}: {clip(_reword(error), 400)}") from None
    if (entry.offset is None) != (entry.length is None):
        there, missing = ("length", "offset") if entry.offset is None else ("offset", "length")
        raise ManifestError(f"{where}: it has {there!r} but no {missing!r}: give both or neither")
    dimensions = {
        name: _parse_dimension(f"{where}: dimension {clip(name)!r}", spec) for name, spec in entry.dimensions.items()
    }
    for name in dimensions:
        if name in templates:
            raise ManifestError(f"{where}: {clip(name)!r} is the name of both a dimension and a template")
    spent = Spent()
    count = math.prod(map(_count, dimensions.values()))
    if count:
        first = Rows(1, {name: values[:1] for name, values in dimensions.items()})
        _expand_rows(where, entry, first, templates, spent)
    return _Plan(where, entry, dimensions, count, spent)


def _reword(error: Exception) -> str:
    """Reword an error of msgspec without its notation for JSON paths."""
    reason, _, path = str(error).partition(" - at `$.")
    return f"{reason[0].lower()}{reason[1:]}" + (f" in {path.rstrip('`')}" if path else "")


def _parse_dimension(where: str, spec: list[int] | _Steps) -> Sequence[int]:
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
        raise ManifestError(f"{where}: it has an integer that does not fit into 64 bits")
    return values


def _count(values: Sequence[int]) -> int:
    """Return the number of values, also of a range that is too long for len()."""
    match values:
        case range(start=start, stop=stop, step=step):
            return max(0, -((start - stop) // step))
    return len(values)


def _iter_blocks(plan: _Plan, size: int) -> Iterator[Rows]:
    """Yield all combinations of dimensions, ``size`` rows at a time; the last dimension varies fastest."""
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
        for rows in _iter_blocks(plan, size):
            keys, urls, offsets, lengths = _expand_rows(plan.where, plan.entry, rows, templates, Spent())
            characters += sum(map(len, keys)) + (sum(map(len, urls)) if "{{" in plan.entry.url else 0)
            if characters > limits.generated_text:
                raise ManifestError(f"{plan.where}: gen expands to more than {limits.generated_text} characters")
            yield from zip(keys, urls, offsets, lengths, strict=True)


def _expand_rows(
    where: str, entry: _GenEntry, rows: Rows, templates: Templates, spent: Spent
) -> tuple[Sequence[str], Sequence[str], Column, Column]:
    """Expand the keys, URLs, offsets and lengths of some rows."""
    fields: dict[str, Column] = {}
    for field, value in msgspec.structs.asdict(entry).items():
        try:
            match value:
                case str():
                    fields[field] = templates.column(value, rows, spent)
                case int() if value not in INTEGERS:
                    raise ManifestError("it does not fit into 64 bits")
                case int() | None:
                    fields[field] = [value] * rows.count
            if field in ("offset", "length") and value is not None:
                fields[field] = _check_numbers(fields[field], rows)
        except ManifestError as error:
            raise type(error)(f"{where}: {field}: {error}") from None
    return list(map(str, fields["key"])), list(map(str, fields["url"])), fields["offset"], fields["length"]


def _check_numbers(column: Column, rows: Rows) -> Column:
    """Convert offsets or lengths, as integers or text, to integers. Raise ManifestError if one is out of range."""
    if isinstance(column[0], str):
        column = [_parse_integer(text, rows, row) for row, text in enumerate(column)]
    if min(column) < 0 or max(column) not in INTEGERS:
        row = next(row for row, value in enumerate(column) if value < 0 or value not in INTEGERS)
        raise ManifestError(f"{column[row]} is not between 0 and 2**63-1{rows.at(row)}")
    return column


def _parse_integer(text: str, rows: Rows, row: int) -> int:
    digits = text.strip()
    if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) <= 20:
        return int(digits)
    raise ManifestError(f"{text[:80]!r} is not an integer{rows.at(row)}")

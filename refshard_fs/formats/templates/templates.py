"""Expand templates and "gen" of kerchunk's sets of version 1. No I/O here.

By default, templates are in the small language of `expressions`, which cannot run code. With ``simple=False``, jinja2
expands them in its sandbox, for sets that the user trusts. With both, an undefined name is an error, although jinja by
default leaves such a name out. Specification: kerchunk's "References specification", version 1.
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
    Cost,
    Rows,
    SimpleExpander,
    TemplateLimits,
    TemplateText,
    clip,
)

DEFAULT_LIMITS: Final = TemplateLimits()
COMPILED: Final = 256  # the most compiled templates of jinja2 that are kept
# At most ROWS keys are generated at a time, and fewer if they have more than about CHARACTERS characters together.
ROWS: Final = 8192
CHARACTERS: Final = 1 << 24
_WIDEST: Final = 20  # characters of -2**63: an integer in a text has from 1 to this many characters

Generated = tuple[str, str, int | None, int | None]


class Templates:
    """The templates of a set. Thread-safe.

    ``definitions`` come from the set; ``overrides`` come from the user, and take precedence. A template with
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
        self._cost = Cost()  # the cost of all texts that were expanded
        self._characters = 0  # the characters of these texts before their expansion

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def expand(self, text: str) -> str:
        """Replace every ``{{ }}`` in ``text`` by its value. Raise ManifestError if that is impossible.

        A text without ``{{`` is returned unchanged.
        """
        if "{{" not in text:
            return text
        cost = Cost()
        expanded = str(self.expand_column(text, Rows(1, {}), cost)[0])
        self._cost.steps += cost.steps
        self._cost.characters += len(expanded)
        self._characters += len(text)
        if self._cost.steps > self.limits.expanded_steps:
            found = f"all its templates take {self._cost.steps} operations or more"
            raise ManifestError(f"{found}: expected at most {self.limits.expanded_steps}")
        most = max(self.limits.expanded_text, self.limits.swells * self._characters)
        if self._cost.characters > most:
            found = f"all its templates expand to {self._cost.characters} characters or more"
            raise ManifestError(f"{found}: expected at most {most}")
        return expanded

    def expand_column(self, text: str, rows: Rows, cost: Cost) -> Column:
        """Expand ``text`` in each row, to integers if it is a single integer expression. Add the cost to ``cost``."""
        return self._expander.expand_column(TemplateText(text), rows, cost)


class JinjaExpander:
    """Expand texts with jinja2 in its own sandbox; see `SimpleExpander`.

    A template with ``{{`` is a function of keyword arguments; other templates are texts. The sandbox hides Python's
    objects from templates, but it does not limit time and memory. So this is only for trusted sets; the caller checks
    that.
    """

    def __init__(self, definitions: Mapping[str, TemplateText], limits: TemplateLimits) -> None:
        try:
            import jinja2.sandbox  # an optional dependency
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

    def expand_column(self, source: TemplateText, rows: Rows, cost: Cost) -> Column:
        """Expand ``source`` in each row to a text."""
        cost.steps += 1
        cost.characters += self._limits.output
        variables = ({name: column[row] for name, column in rows.columns.items()} for row in range(rows.count))
        return [self._render_text(source, values) for values in variables]

    def _make_function(self, source: TemplateText) -> Callable[..., str]:
        return lambda **arguments: self._render_text(source, arguments)

    def _render_text(self, source: TemplateText, variables: Mapping[str, Any]) -> str:
        try:
            text = self._template(source.text).render({**self._names, **variables})
        except ManifestError:
            raise
        except ZeroDivisionError as error:
            raise DivisionByZero(str(source.make_error(None, str(error)))) from error
        except RecursionError:
            reason = "its templates are nested too deeply: expected fewer levels, and no template that uses itself"
            raise source.make_error(None, reason) from None
        except Exception as error:  # templates raise the errors of Python's operators and methods
            raise source.make_error(None, str(error) or type(error).__name__) from error
        if len(text) > self._limits.output:
            raise source.make_error(
                None, f"the expanded text has {len(text)} characters: expected at most {self._limits.output}"
            )
        return text


def _check_definition(name: object, text: object) -> TemplateText:
    """Return the text of a template; ManifestError if it is not text."""
    match name, text:
        case str(), str():
            return TemplateText(text, f"template {name!r}")
    raise ManifestError(f"template {clip(str(name))!r}: expected text, found {type(text).__name__}")


class _Range(msgspec.Struct, frozen=True):
    """The values of a dimension of `gen`, as in a Python range."""

    stop: int
    start: int = 0
    step: int = 1


class _GenEntry(msgspec.Struct, frozen=True):
    """An entry of `gen`. Fields that the specification does not define are ignored."""

    key: str
    url: str
    dimensions: dict[str, list[int] | _Range]
    offset: int | str | None = None
    length: int | str | None = None


class _CheckedEntry(msgspec.Struct, frozen=True):
    """An entry of `gen` with ``count`` keys, each of the same ``cost``. The first key was expanded for a check."""

    where: str
    entry: _GenEntry
    dimensions: Mapping[str, Sequence[int]]
    count: int
    cost: Cost


def expand_gen(
    entries: Sequence[object], templates: Templates, *, limits: TemplateLimits | None = None
) -> Iterator[Generated]:
    """Yield (key, url, offset, length) for each combination of the dimensions of each entry.

    The last dimension varies fastest, as in itertools.product. If a key comes twice, the last reference is valid. All
    entries are checked before the first key is yielded. Raises ManifestError if an entry is invalid, or all entries
    together exceed ``limits`` (default: those of ``templates``). A ``step`` may be negative, as in a Python range. An
    offset or a length may be an integer in place of a template.
    """
    limits = limits or templates.limits
    checked = [_check_entry(number, entry, templates) for number, entry in enumerate(entries)]
    total = sum(entry.count for entry in checked)
    if total > limits.generated:
        raise ManifestError(f"gen: it expands to {total} keys: expected at most {limits.generated}")
    steps = sum(entry.count * entry.cost.steps for entry in checked)
    if steps > limits.generated_steps:
        raise ManifestError(f"gen: it takes {steps} operations: expected at most {limits.generated_steps}")
    return _generate_keys(checked, templates, limits)


def _check_entry(number: int, member: object, templates: Templates) -> _CheckedEntry:
    """Check a member of `gen`, and expand its first key. ManifestError if it is invalid."""
    match member:
        case {"key": str(key)}:
            where = f"gen[{number}] (key {clip(key)!r})"
        case _:
            where = f"gen[{number}]"
    try:
        entry = msgspec.convert(member, _GenEntry)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError: half of a surrogate pair
        raise ManifestError(f"{where}: {clip(_reword_error(error), 400)}") from None
    if (entry.offset is None) != (entry.length is None):
        present, missing = ("length", "offset") if entry.offset is None else ("offset", "length")
        raise ManifestError(f"{where}: it has {present!r} but no {missing!r}: expected both or neither")
    dimensions = {
        name: _parse_dimension(f"{where}: dimension {clip(name)!r}", spec) for name, spec in entry.dimensions.items()
    }
    for name in dimensions:
        if name in templates:
            found = f"{clip(name)!r} is the name of a dimension and of a template"
            raise ManifestError(f"{where}: {found}: expected different names")
    cost = Cost()
    count = math.prod(map(_count_values, dimensions.values()))
    if count:
        first = Rows(1, {name: values[:1] for name, values in dimensions.items()})
        _expand_rows(where, entry, first, templates, cost)
    return _CheckedEntry(where, entry, dimensions, count, cost)


def _reword_error(error: Exception) -> str:
    """Return the text of an error of msgspec, with the place in words instead of a JSON path."""
    reason, _, path = str(error).partition(" - at `$.")
    return f"{reason[0].lower()}{reason[1:]}" + (f" in {path.rstrip('`')}" if path else "")


def _parse_dimension(where: str, spec: list[int] | _Range) -> Sequence[int]:
    """Return the values of a dimension; ManifestError, which begins with ``where``, if they are invalid."""
    match spec:
        case list():
            values: Sequence[int] = spec
            bounds = spec
        case _Range(stop, start, step):
            if step == 0:
                raise ManifestError(f"{where}: its step is 0: expected another number")
            bounds = [stop, start, step]
            values = range(start, stop, step)
    if not all(bound in INTEGERS for bound in bounds):
        raise ManifestError(f"{where}: it has an integer that does not fit into 64 bits: expected -2**63 to 2**63-1")
    return values


def _count_values(values: Sequence[int]) -> int:
    """Return the number of values. ``len`` would fail for a range of more than 2**63-1 values."""
    match values:
        case range(start=start, stop=stop, step=step):
            return max(0, -((start - stop) // step))
    return len(values)


def _iterate_blocks(checked: _CheckedEntry, size: int) -> Iterator[Rows]:
    """Yield all combinations of dimensions, ``size`` rows at a time; the last dimension varies fastest."""
    counts = tuple(map(_count_values, checked.dimensions.values()))
    for start in range(0, checked.count, size):
        numbers = np.arange(start, min(start + size, checked.count))
        places = np.unravel_index(numbers, counts) if counts else ()
        columns = {
            name: list(map(values.__getitem__, column.tolist()))
            for (name, values), column in zip(checked.dimensions.items(), places, strict=True)
        }
        yield Rows(len(numbers), columns)


def _generate_keys(
    entries: Sequence[_CheckedEntry], templates: Templates, limits: TemplateLimits
) -> Iterator[Generated]:
    """Yield the keys of checked entries, and their references."""
    characters = 0
    for checked in entries:
        size = max(1, min(ROWS, CHARACTERS // max(1, _WIDEST * checked.cost.characters)))
        for rows in _iterate_blocks(checked, size):
            keys, urls, offsets, lengths = _expand_rows(checked.where, checked.entry, rows, templates, Cost())
            characters += sum(map(len, keys)) + (sum(map(len, urls)) if "{{" in checked.entry.url else 0)
            if characters > limits.generated_text:
                found = f"gen expands to {characters} characters or more"
                raise ManifestError(f"{checked.where}: {found}: expected at most {limits.generated_text}")
            yield from zip(keys, urls, offsets, lengths, strict=True)


def _expand_rows(
    where: str, entry: _GenEntry, rows: Rows, templates: Templates, cost: Cost
) -> tuple[Sequence[str], Sequence[str], Column, Column]:
    """Expand the key, URL, offset and length of each row. ManifestError, which begins with ``where``, if impossible."""
    fields: dict[str, Column] = {}
    for field, value in msgspec.structs.asdict(entry).items():
        try:
            match value:
                case str():
                    fields[field] = templates.expand_column(value, rows, cost)
                case int() if value not in INTEGERS:
                    raise ManifestError("it does not fit into 64 bits: expected a number from 0 to 2**63-1")
                case int() | None:
                    fields[field] = [value] * rows.count
            if field in ("offset", "length") and value is not None:
                fields[field] = _check_numbers(fields[field], rows)
        except ManifestError as error:
            raise type(error)(f"{where}: {field}: {error}") from None
    return list(map(str, fields["key"])), list(map(str, fields["url"])), fields["offset"], fields["length"]


def _check_numbers(column: Column, rows: Rows) -> Column:
    """Convert offsets or lengths, integers or texts, to integers. Raise ManifestError for a number out of range."""
    if isinstance(column[0], str):
        column = [_parse_integer(text, rows, row) for row, text in enumerate(column)]
    if min(column) < 0 or max(column) not in INTEGERS:
        row = next(row for row, value in enumerate(column) if value < 0 or value not in INTEGERS)
        raise ManifestError(f"expected a number from 0 to 2**63-1, got {column[row]}{rows.describe_row(row)}")
    return column


def _parse_integer(text: str, rows: Rows, row: int) -> int:
    """Return the integer in the text of a row; ManifestError if it is another text."""
    digits = text.strip()
    if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) <= 20:
        return int(digits)
    raise ManifestError(f"expected an integer, got {text[:80]!r}{rows.describe_row(row)}")

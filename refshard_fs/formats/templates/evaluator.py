"""Compiled templates: an expression becomes a few C-level passes over whole columns of dimension values.

A template of a `gen` entry is evaluated for up to millions of keys, so that an operation is compiled once, to a
function from `Rows` to a column of results. What depends on no dimension is computed while compiling. The length of
every text is bounded from above while compiling, so nothing too long is ever made; integers stay in 64 bits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Literal

import msgspec

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.expressions import (
    INTEGERS,
    Binary,
    Expression,
    Name,
    Source,
    TemplateLimits,
    Value,
    parse,
)

__all__ = ["INTEGER_WIDTH", "Column", "Compiler", "Rows", "texts"]

INTEGER_WIDTH: Final = 20  # characters of -2**63
_SIGNED: Final = re.compile(r"((?:[^%]|%%)*)%(0?)([1-9][0-9]?)?d((?:[^%]|%%)*)", re.DOTALL)


class Rows(msgspec.Struct, frozen=True):
    """A block of combinations of dimension values: one column of ``count`` integers per dimension."""

    count: int
    columns: Mapping[str, Sequence[int]]

    def at(self, row: int) -> str:
        """Describe one row, for errors."""
        return ", ".join(f"{name}={column[row]}" for name, column in self.columns.items())


class Column(msgspec.Struct, frozen=True):
    """A value per row. ``width`` bounds its characters.

    ``steps`` are the operations that a row takes, none where all rows have the same value; ``depth`` is their nesting.
    """

    kind: Literal["integer", "text"]
    width: int
    run: Callable[[Rows], Iterable[Any]]
    steps: int = 0
    depth: int = 0

    @classmethod
    def constant(cls, value: int | str) -> Column:
        """Return the same value for every row."""
        kind: Literal["integer", "text"] = "text" if isinstance(value, str) else "integer"
        return cls(kind, len(str(value)), lambda rows: repeat(value, rows.count))


def _power(base: int, exponent: int) -> int:
    """Return ``base ** exponent``; ValueError where that is no integer or far outside 64 bits."""
    if exponent < 0:
        raise ValueError(f"{base} ** {exponent} is not an integer")
    if exponent > 63 and abs(base) > 1:
        raise ValueError(f"{base} ** {exponent} is more than 64 bits hold")
    result: int = base**exponent
    return result


def _pad(pattern: str) -> tuple[Callable[[int], str], int]:
    """Return what ``'%04d' % integer`` does, and how long that can get; ValueError where the pattern is another one."""
    match = _SIGNED.fullmatch(pattern)
    if match is None:
        raise ValueError("only one %d, %4d or %04d (and %%) can stand in text before '%'")
    before, zero, digits, after = match.groups()
    before, after, least = before.replace("%%", "%"), after.replace("%%", "%"), int(digits or 0)
    fill = "0" if zero else " "

    def padded(value: int) -> str:
        number = str(value).zfill(least) if fill == "0" else str(value).rjust(least)
        return f"{before}{number}{after}"

    return padded, len(before) + max(least, INTEGER_WIDTH) + len(after)


_INTEGER_OPERATORS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}


class Compiler:
    """Compiles texts that use the templates in ``definitions``, within ``limits``."""

    def __init__(self, definitions: Mapping[str, Source], limits: TemplateLimits) -> None:
        self.limits = limits
        self.definitions = definitions
        self._parsed: dict[str, tuple[str | Expression, ...]] = {}
        self._steps = 0  # of the text that is being compiled
        self._all_steps = 0

    def compile(self, source: Source, variables: Mapping[str, Column]) -> Column:
        """Return the column that ``source`` expands to; a text that is one integer expression gives integers."""
        self._steps = 0
        try:
            column = _Scope(self, source, variables, ()).template(parse(source, self.definitions, self.limits))
        except RecursionError:  # the reader's own stack was deep already
            raise source.error(None, "its templates and expressions nest too deep") from None
        self._all_steps += self._steps
        if self._all_steps > self.limits.expanded_steps:
            raise source.error(None, "all texts take more operations than limits.expanded_steps allows")
        return column

    def count_step(self, source: Source) -> None:
        self._steps += 1
        if self._steps > self.limits.steps:
            raise source.error(0, f"expanding it takes more than {self.limits.steps} steps")

    def body(self, name: str) -> tuple[str | Expression, ...]:
        """Return the parts of a template; without ``{{`` its text is literal, whatever it holds."""
        if name not in self._parsed:
            source = self.definitions[name]
            literal = "{{" not in source.text and len(source.text) <= self.limits.text
            self._parsed[name] = (source.text,) if literal else parse(source, self.definitions, self.limits)
        return self._parsed[name]


class _Scope:
    """One text being compiled: what its names mean, and which templates it is part of."""

    def __init__(
        self, compiler: Compiler, source: Source, variables: Mapping[str, Column], active: tuple[str, ...]
    ) -> None:
        self.compiler = compiler
        self.limits = compiler.limits
        self.source = source
        self.variables = variables
        self.active = active

    def template(self, parts: Sequence[str | Expression]) -> Column:
        match parts:
            case []:
                return Column.constant("")
            case [str() as literal]:
                return Column.constant(literal)
            case [Value() | Name() | Binary() as expression]:
                return self.lower(expression)
        columns = [Column.constant(part) if isinstance(part, str) else self.lower(part) for part in parts]
        return self._joined(columns, 0)

    def lower(self, expression: Expression) -> Column:
        self.compiler.count_step(self.source)
        match expression:
            case Value(value):
                return Column.constant(value)
            case Name(name, None, position) if name in self.variables:
                return self.variables[name]
            case Name(name, arguments, position):
                if name in self.variables:
                    raise self.source.error(position, f"{name!r} is a value, and takes no arguments")
                return self._call(name, {key: self.lower(value) for key, value in arguments or ()}, position)
            case Binary("~", left, right, position):
                return self._joined([self.lower(left), self.lower(right)], position)
            case Binary("%", Value(str(pattern)), right, position):
                return self._padded(pattern, self._integer(self.lower(right), "%", position), position)
            case Binary(sign, left, right, position):
                first, second = self.lower(left), self.lower(right)
                if sign == "+" and first.kind == second.kind == "text":
                    return self._joined([first, second], position)
                first, second = self._integer(first, sign, position), self._integer(second, sign, position)
                return self._integers(sign, first, second, position)

    def _call(self, name: str, arguments: Mapping[str, Column], position: int) -> Column:
        if name not in self.compiler.definitions:
            if self.active:
                advice = f"pass it as an argument: {{{{{self.active[-1]}({name}=...)}}}}"
            else:
                known = ", ".join(sorted({*self.variables, *self.compiler.definitions})[:20])
                advice = f"known here: {known or 'none'}"
            raise self.source.error(position, f"there is no template or variable {name!r}; {advice}")
        if name in self.active:
            cycle = " -> ".join([*self.active, name])
            raise self.source.error(position, f"the template {name!r} uses itself: {cycle}")
        if len(self.active) >= self.limits.depth:
            raise self.source.error(position, f"templates may nest {self.limits.depth} deep")
        scope = _Scope(self.compiler, self.compiler.definitions[name], arguments, (*self.active, name))
        return self._joined([scope.template(self.compiler.body(name))], position)  # text, even if that of an integer

    def _integer(self, column: Column, sign: str, position: int) -> Column:
        if column.kind == "integer":
            return column
        advice = "; '~' joins texts" if sign == "+" else ""
        raise self.source.error(position, f"{sign!r} needs integers, and one of these is text{advice}")

    def _integers(self, sign: str, left: Column, right: Column, position: int) -> Column:
        function = _INTEGER_OPERATORS[sign]

        def run(rows: Rows) -> Iterable[int]:
            values: list[int] = []
            try:
                values.extend(map(function, left.run(rows), right.run(rows)))
                if not values or (min(values) in INTEGERS and max(values) in INTEGERS):
                    return values
                row = next(row for row, value in enumerate(values) if value not in INTEGERS)
                reason = "the result is more than 64 bits hold"
            except ZeroDivisionError:
                row, reason = len(values), "division by zero"
            except ValueError as error:
                if isinstance(error, ManifestError):
                    raise
                row, reason = len(values), str(error)
            where = rows.at(row)
            raise self.source.error(position, f"{sign!r}: {reason}" + (f" at {where}" if where else ""))

        return self._operation("integer", INTEGER_WIDTH, (left, right), run, position)

    def _padded(self, pattern: str, right: Column, position: int) -> Column:
        try:
            padded, width = _pad(pattern)
        except ValueError as error:
            raise self.source.error(position, str(error)) from None

        def run(rows: Rows) -> Iterable[str]:
            return map(padded, right.run(rows))

        return self._operation("text", width, (right,), run, position)

    def _joined(self, columns: Sequence[Column], position: int) -> Column:
        def run(rows: Rows) -> Iterable[str]:
            return map("".join, zip(*[texts(column, rows) for column in columns], strict=True))

        if len(columns) == 1 and columns[0].kind == "text":
            return columns[0]
        return self._operation("text", sum(column.width for column in columns), columns, run, position)

    def _operation(
        self,
        kind: Literal["integer", "text"],
        width: int,
        operands: Sequence[Column],
        run: Callable[[Rows], Iterable[Any]],
        position: int,
    ) -> Column:
        if kind == "text" and width > self.limits.output:
            raise self.source.error(position, f"the text may get longer than {self.limits.output} characters")
        if not any(operand.steps for operand in operands):
            return Column.constant(next(iter(run(Rows(1, {})))))
        steps = 1 + sum(operand.steps for operand in operands)
        depth = 1 + max(operand.depth for operand in operands)
        if steps > self.limits.steps:
            raise self.source.error(position, f"expanding it takes more than {self.limits.steps} steps")
        if depth > self.limits.terms:
            raise self.source.error(position, "its templates and expressions nest too deep")
        return Column(kind, width, run, steps, depth)


def texts(column: Column, rows: Rows) -> Iterable[str]:
    """Return the values of a column as text."""
    return column.run(rows) if column.kind == "text" else map(str, column.run(rows))

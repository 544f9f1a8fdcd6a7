r"""The little language inside ``{{ }}``: what a manifest may compute, parsed into a closed set of frozen values.

Nothing here runs anything. The grammar is a subset of jinja's, with jinja's precedence (from loose to tight:
``+ -``, ``~``, ``* // %``, ``**``, unary minus, all of them binding to the left), so that whatever parses means the
same to jinja:

    integers, 'text' or "text" (with the escapes of \\, quotes, n and t), names, name(argument=expression), parentheses

There are no attributes, subscripts, filters, statements, fractions or positional arguments to refuse later.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Literal

import msgspec

from refshard_fs.errors import ManifestError

KIB: Final = 1024
INTEGERS: Final = range(-(2**63), 2**63)  # what every integer must lie in, also between two operations
ALLOWED: Final = "names, templates with keyword arguments, integers, quoted text, + - * // % ** ~ and parentheses"


class TemplateLimits(msgspec.Struct, frozen=True):
    """How much a manifest's templates may cost; whatever goes beyond is a ManifestError, found before it is spent."""

    text: int = 64 * KIB  # characters of one template
    output: int = 64 * KIB  # characters of one expanded text
    terms: int = 100  # operands and operators of one {{ }}
    depth: int = 32  # operations and calls nested in each other
    steps: int = 10_000  # operations for one expanded text
    expanded_steps: int = 100_000_000  # operations for all texts of a set,
    expanded_text: int = 1024 * KIB * KIB  # and characters of all that they expand to
    generated: int = 10_000_000  # keys of all `gen` entries
    generated_steps: int = 1_000_000_000  # operations for all of those keys
    generated_text: int = 1024 * KIB * KIB  # characters of all of those keys and URLs


def clip(text: str, length: int = 150) -> str:
    """Return ``text``, for an error, without its middle if it is long."""
    return text if len(text) <= length else f"{text[: length - 35]}...{text[-30:]}"


class Source(msgspec.Struct, frozen=True):
    """A template's text and what to call it in an error."""

    text: str
    name: str = "template"

    def error(self, position: int | None, reason: str) -> ManifestError:
        """Return the error that says why this text cannot be expanded, and where (0-based ``position``), if known."""
        where = "" if position is None else f", column {position + 1}"
        return ManifestError(f"{clip(self.name)} {clip(self.text)!r}{where}: {clip(reason, 400)}")


class Value(msgspec.Struct, frozen=True):
    """An integer of `INTEGERS`, or an unescaped text."""

    value: int | str


class Name(msgspec.Struct, frozen=True):
    """A variable or a template, with its arguments if it is called; ``position`` is 0-based in the source."""

    name: str
    arguments: tuple[tuple[str, Expression], ...] | None
    position: int


class Binary(msgspec.Struct, frozen=True):
    """Two operands of one of + - * // % ** ~; a negated operand is subtracted from 0."""

    operator: str
    left: Expression
    right: Expression
    position: int


Expression = Value | Name | Binary

_TOKEN = re.compile(
    r"""\s*(?: (?P<number>(?:0+|[1-9](?:_?[0-9])*)(?![\w.]))
             | (?P<name>[^\W\d]\w*)
             | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
             | (?P<sign>\}\}|\*\*|//|[-+*/%~(),=]))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_LEVELS: Final = (("+", "-"), ("~",), ("*", "//", "%", "/"), ("**",))  # from loose to tight


def parse(source: Source, names: Container[str], limits: TemplateLimits) -> tuple[str | Expression, ...]:
    """Split a template into literal texts and the expressions between ``{{`` and ``}}``.

    ``names`` are those of the templates: they are arbitrary, so a hole that holds exactly one of them is that name,
    whether or not it looks like an identifier.
    """
    text = source.text
    if len(text) > limits.text:
        raise source.error(limits.text, f"a template may have {limits.text} characters, and this one has {len(text)}")
    parts: list[str | Expression] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        parts.append(_literal(source, position, start))
        end = text.find("}}", start)
        whole = text[start + 2 : end].strip()
        if end >= 0 and whole in names:
            parts.append(Name(whole, None, start + 2))
            position = end + 2
        else:
            if text[start + 2 : start + 3] in ("-", "+"):
                raise source.error(start, "to jinja, '{{-' trims spaces: put a space after '{{'")
            parser = _Parser(source, start + 2, limits)
            parts.append(parser.hole())
            position = parser.position
    parts.append(_literal(source, position, len(text)))
    return tuple(part for part in parts if part != "")


def _literal(source: Source, start: int, stop: int) -> str:
    literal = source.text[start:stop]
    for opening in ("{%", "{#"):
        if opening in literal:
            raise source.error(
                start + literal.index(opening), f"{opening!r} (a statement or comment) needs simple_templates=False"
            )
    return literal


class _Parser:
    """One pass over the tokens of one hole; every method leaves `position` behind what it has taken."""

    def __init__(self, source: Source, position: int, limits: TemplateLimits) -> None:
        self.source = source
        self.limits = limits
        self.position = position
        self.terms = 0
        self.kind: str | None = None
        self.lexeme = ""
        self.start = position
        self._advance()

    def hole(self) -> Expression:
        expression = self._level(0, 1)
        if self.lexeme != "}}":
            raise self._unexpected()
        return expression

    def _advance(self) -> None:
        """Go on to the next token: `kind`, `lexeme`, `start`."""
        match = _TOKEN.match(self.source.text, self.position)
        if match is None:
            self._refuse()
        else:
            self.kind = match.lastgroup
            self.lexeme = match.group(match.lastgroup or 0)
            self.start = match.start(match.lastgroup or 0)
            self.position = match.end()

    def _refuse(self) -> None:
        text = self.source.text
        start = self.position + len(text[self.position :]) - len(text[self.position :].lstrip())
        if "}}" not in text[start:]:
            raise self.source.error(start, "'{{' is never closed by '}}'")
        if text[start] in "'\"":
            raise self.source.error(start, "this quoted text is never closed")
        found = re.match(r"[\w.]+|.", text[start:], re.DOTALL)
        raise self.source.error(start, f"{found and found.group()!r} is not allowed; inside {{{{ }}}} are {ALLOWED}")

    def _unexpected(self) -> ManifestError:
        what = "an expression ends too early" if self.lexeme == "}}" else f"{self.lexeme!r} is not expected here"
        return self.source.error(self.start, f"{what}; inside {{{{ }}}} are {ALLOWED}")

    def _count(self, depth: int) -> None:
        self.terms += 1
        if self.terms > self.limits.terms or depth > self.limits.depth:
            allowed = f"{self.limits.terms} operands and operators and {self.limits.depth} levels of nesting"
            raise self.source.error(self.start, f"an expression may have {allowed}")

    def _level(self, level: int, depth: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary(depth)
        left = self._level(level + 1, depth)
        while self.lexeme in _LEVELS[level]:
            self._count(depth)
            operator, position = self.lexeme, self.start
            if operator == "/":
                raise self.source.error(position, "'/' makes fractions, which no key or range can have: '//' divides")
            self._advance()
            left = Binary(operator, left, self._level(level + 1, depth), position)
        return left

    def _unary(self, depth: int) -> Expression:
        self._count(depth)
        kind, lexeme, position = self.kind, self.lexeme, self.start
        match kind, lexeme:
            case "sign", "-":
                self._advance()
                return Binary("-", Value(0), self._unary(depth + 1), position)
            case "sign", "(":
                self._advance()
                inner = self._level(0, depth + 1)
                self._expect(")")
                return inner
            case "number", _:
                self._advance()
                digits = lexeme.replace("_", "")
                if len(digits) > 19 or int(digits) not in INTEGERS:
                    raise self.source.error(position, f"{lexeme[:40]} is more than 64 bits hold")
                return Value(int(digits))
            case "text", _:
                self._advance()
                return Value(_ESCAPE.sub(lambda match: self._unescape(match, position), lexeme[1:-1]))
            case "name", _:
                self._advance()
                return Name(lexeme, self._arguments(depth + 1) if self.lexeme == "(" else None, position)
        raise self._unexpected()

    def _arguments(self, depth: int) -> tuple[tuple[str, Expression], ...]:
        self._advance()
        arguments: dict[str, Expression] = {}
        while self.lexeme != ")":
            name, position = self.lexeme, self.start
            is_name = self.kind == "name"
            self._advance()
            if not is_name or self.lexeme != "=":
                raise self.source.error(position, "a template takes keyword arguments: name(argument=value)")
            if name in arguments:
                raise self.source.error(position, f"the argument {name!r} is given twice")
            self._advance()
            arguments[name] = self._level(0, depth)
            if self.lexeme != ")":
                self._expect(",")
        self._advance()
        return tuple(arguments.items())

    def _expect(self, sign: str) -> None:
        if self.lexeme != sign:
            raise self._unexpected()
        self._advance()

    def _unescape(self, match: re.Match[str], position: int) -> str:
        try:
            return _ESCAPED[match.group(1)]
        except KeyError:
            raise self.source.error(position, f"the escape {match.group()!r} is not allowed in quoted text") from None


# ----------------------------------------------------------------------------------------------------
# Compiled templates: an expression becomes a few C-level passes over whole columns of dimension values.
#
# A template of a `gen` entry is evaluated for up to millions of keys, so that an operation is compiled once, to a
# function from `Rows` to a column of results. What depends on no dimension is computed while compiling. The length of
# every text is bounded from above while compiling, so nothing too long is ever made; integers stay in 64 bits.


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

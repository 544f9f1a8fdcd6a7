r"""The little language inside ``{{ }}``: what a manifest may compute. Nothing that is parsed here is ever run as code.

The grammar is a subset of jinja's, with jinja's precedence (from loose to tight: ``+ -``, ``~``, ``* // %``, ``**``,
unary minus, all of them binding to the left), so that whatever parses means the same to jinja:

    integers, 'text' or "text" (with the escapes of \\, quotes, n and t), names, name(argument=expression), parentheses

An expression is parsed to operations in the order in which they are done, and each of them is done for all rows of a
column at a time: a `gen` entry may stand for millions of keys.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from refshard_fs.errors import DivisionByZero, ManifestError

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
    expanded_text: int = 256 * KIB * KIB  # and characters of all that they expand to,
    swells: int = 16  # or so many times as many as they have
    generated: int = 2_000_000  # keys of all `gen` entries
    generated_steps: int = 1_000_000_000  # operations for all of those keys
    generated_text: int = 512 * KIB * KIB  # characters of all of those keys and URLs


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


class Rows(msgspec.Struct, frozen=True):
    """Combinations of dimension values, ``count`` of them: a column of integers for each dimension."""

    count: int
    columns: Mapping[str, Sequence[int]]

    def at(self, row: int) -> str:
        """Describe one row, for errors."""
        where = ", ".join(f"{name}={column[row]}" for name, column in self.columns.items())
        return f" at {where}" if where else ""


class Spent(msgspec.Struct):
    """What expanding texts has taken for each row: operations, and characters of all texts that were made."""

    steps: int = 0
    characters: int = 0


Column = Sequence[Any]  # a value for each row: all of them are integers, or all of them texts


# ----------------------------------------------------------------------------------------------------
# From text to operations.


class Constant(msgspec.Struct, frozen=True):
    """Puts an integer of `INTEGERS` or an unescaped text on the stack."""

    value: int | str
    position: int


class Name(msgspec.Struct, frozen=True):
    """Puts a variable or an expanded template there; if it is called, that takes ``arguments`` off the stack."""

    name: str
    arguments: tuple[str, ...] | None
    position: int


class Binary(msgspec.Struct, frozen=True):
    """Makes one value of the last two by + - * // % ** or ~; to negate one is to subtract it from 0."""

    sign: str
    position: int


Operation = Constant | Name | Binary
Part = str | tuple[Operation, ...]  # literal text, or an expression

_TOKEN = re.compile(
    r"""\s*(?: (?P<number>(?:0+|[1-9](?:_?[0-9])*)(?![\w.]))
             | (?P<name>[^\W\d]\w*)
             | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
             | (?P<sign>\}\}|\*\*|//|[-+*/%~(),=]))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_TIGHTNESS: Final = {"+": 1, "-": 1, "~": 2, "*": 3, "//": 3, "%": 3, "/": 3, "**": 4}


def parse(source: Source, names: Container[str], limits: TemplateLimits) -> tuple[Part, ...]:
    """Split a template into literal texts and the expressions between ``{{`` and ``}}``.

    ``names`` are those of the templates: they are arbitrary, so a hole that holds exactly one of them is that name,
    whether or not it looks like an identifier.
    """
    text = source.text
    if len(text) > limits.text:
        raise source.error(limits.text, f"a template may have {limits.text} characters, and this one has {len(text)}")
    parts: list[Part] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        parts.append(_literal(source, position, start))
        end = text.find("}}", start)
        whole = text[start + 2 : end].strip()
        if end >= 0 and whole in names:
            parts.append((Name(whole, None, start + 2),))
            position = end + 2
        else:
            if text[start + 2 : start + 3] in ("-", "+"):
                raise source.error(start, "to jinja, '{{-' trims spaces: put a space after '{{'")
            parser = _Parser(source, start + 2, limits)
            parts.append(parser.hole())
            position = parser.position
    parts.append(_literal(source, position, len(text)))
    return tuple(part for part in parts if part)


def _literal(source: Source, start: int, stop: int) -> str:
    literal = source.text[start:stop]
    for opening in ("{%", "{#"):
        if opening in literal:
            reason = f"{opening!r} (a statement or comment) needs simple_templates=False"
            raise source.error(start + literal.index(opening), reason)
    return literal


class _Parser:
    """One pass over the tokens of one hole; every method leaves `position` behind what it has taken."""

    def __init__(self, source: Source, position: int, limits: TemplateLimits) -> None:
        self.source = source
        self.limits = limits
        self.position = position
        self.terms = 0
        self.operations: list[Operation] = []
        self._advance()

    def hole(self) -> tuple[Operation, ...]:
        self._expression(1, 1)
        if self.lexeme != "}}":
            raise self._unexpected()
        return tuple(self.operations)

    def _advance(self) -> None:
        """Go on to the next token: `kind`, `lexeme`, `start`."""
        match = _TOKEN.match(self.source.text, self.position)
        if match is None or match.lastgroup is None:
            raise self._no_token()
        self.kind, self.lexeme = match.lastgroup, match[match.lastgroup]
        self.start, self.position = match.start(match.lastgroup), match.end()

    def _no_token(self) -> ManifestError:
        text = self.source.text
        start = len(text) - len(text[self.position :].lstrip())
        if "}}" not in text[start:]:
            return self.source.error(start, "'{{' is never closed by '}}'")
        if text[start] in "'\"":
            return self.source.error(start, "this quoted text is never closed")
        found = re.match(r"[\w.]+|.", text[start:], re.DOTALL)
        return self.source.error(start, f"{found and found.group()!r} is not allowed; inside {{{{ }}}} are {ALLOWED}")

    def _unexpected(self) -> ManifestError:
        what = "an expression ends too early" if self.lexeme == "}}" else f"{self.lexeme!r} is not expected here"
        return self.source.error(self.start, f"{what}; inside {{{{ }}}} are {ALLOWED}")

    def _count(self, depth: int) -> None:
        self.terms += 1
        if self.terms > self.limits.terms or depth > self.limits.depth:
            allowed = f"{self.limits.terms} operands and operators and {self.limits.depth} levels of nesting"
            raise self.source.error(self.start, f"an expression may have {allowed}")

    def _expression(self, tightness: int, depth: int) -> None:
        """Take operands, and the operators between them that bind as tightly as that or more so."""
        self._operand(depth)
        while _TIGHTNESS.get(self.lexeme, 0) >= tightness:
            self._count(depth)
            sign, position = self.lexeme, self.start
            if sign == "/":
                raise self.source.error(position, "'/' makes fractions, which no key or range can have: '//' divides")
            self._advance()
            self._expression(_TIGHTNESS[sign] + 1, depth)
            self.operations.append(Binary(sign, position))

    def _operand(self, depth: int) -> None:
        self._count(depth)
        kind, lexeme, position = self.kind, self.lexeme, self.start
        if kind == "sign" and lexeme not in ("-", "("):
            raise self._unexpected()
        self._advance()
        match kind:
            case "number":
                digits = lexeme.replace("_", "")
                if len(digits) > 19 or int(digits) not in INTEGERS:
                    raise self.source.error(position, f"{lexeme[:40]} is more than 64 bits hold")
                self.operations.append(Constant(int(digits), position))
            case "text":
                text = _ESCAPE.sub(lambda match: self._unescape(match, position), lexeme[1:-1])
                self.operations.append(Constant(text, position))
            case "name":
                arguments = self._arguments(depth + 1) if self.lexeme == "(" else None
                self.operations.append(Name(lexeme, arguments, position))
            case _ if lexeme == "-":
                self.operations.append(Constant(0, position))
                self._operand(depth + 1)
                self.operations.append(Binary("-", position))
            case _:
                self._expression(1, depth + 1)
                self._expect(")")

    def _arguments(self, depth: int) -> tuple[str, ...]:
        self._advance()
        names: list[str] = []
        while self.lexeme != ")":
            kind, name, position = self.kind, self.lexeme, self.start
            self._advance()
            if kind != "name" or self.lexeme != "=":
                raise self.source.error(position, "a template takes keyword arguments: name(argument=value)")
            if name in names:
                raise self.source.error(position, f"the argument {name!r} is given twice")
            self._advance()
            self._expression(1, depth)
            names.append(name)
            if self.lexeme != ")":
                self._expect(",")
        self._advance()
        return tuple(names)

    def _expect(self, sign: str) -> None:
        if self.lexeme != sign:
            raise self._unexpected()
        self._advance()

    def _unescape(self, match: re.Match[str], position: int) -> str:
        if match[1] not in _ESCAPED:
            raise self.source.error(position, f"the escape {match[0]!r} is not allowed in a quoted text")
        return _ESCAPED[match[1]]


# ----------------------------------------------------------------------------------------------------
# Operations on whole columns.


_PATTERN: Final = re.compile(r"(?:[^%]|%%)*%0?(?:[1-9][0-9]?)?d(?:[^%]|%%)*", re.DOTALL)


def _power(base: int, exponent: int) -> int:
    """Return ``base ** exponent``; ValueError where that is no integer or far outside 64 bits."""
    if exponent < 0:
        raise ValueError(f"{base} ** {exponent} is not an integer")
    if exponent > 63 and abs(base) > 1:
        raise ValueError(f"{base} ** {exponent} is more than 64 bits hold")
    result: int = base**exponent
    return result


_ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}


class SimpleExpander:
    """Expands texts in the language of this module, within ``limits``."""

    def __init__(self, definitions: Mapping[str, Source], limits: TemplateLimits) -> None:
        self.limits = limits
        self.definitions = definitions
        self._parsed: dict[str, tuple[Part, ...]] = {}

    def column(self, source: Source, rows: Rows, spent: Spent) -> Column:
        """Return what ``source`` expands to in each row, integers if it is one; ManifestError where that cannot be."""
        try:
            parts = parse(source, self.definitions, self.limits)
            return _Expansion(self, source, rows, rows.columns, spent, ()).column(parts)
        except RecursionError:  # the reader's own stack was deep already
            raise source.error(None, "its templates and expressions nest too deep") from None

    def body(self, name: str) -> tuple[Part, ...]:
        """Return the parts of a template; without ``{{`` its text is literal, whatever it holds."""
        if name not in self._parsed:
            source = self.definitions[name]
            literal = "{{" not in source.text and len(source.text) <= self.limits.text
            self._parsed[name] = (source.text,) if literal else parse(source, self.definitions, self.limits)
        return self._parsed[name]


class _Expansion(msgspec.Struct):
    """One text that is being expanded: what its names mean, and which templates it is part of."""

    expander: SimpleExpander
    source: Source
    rows: Rows
    variables: Mapping[str, Column]
    spent: Spent
    active: tuple[str, ...]

    def column(self, parts: Sequence[Part]) -> Column:
        columns = [[part] * self.rows.count if isinstance(part, str) else self._value(part) for part in parts]
        return columns[0] if len(columns) == 1 else self._joined(columns, 0)

    def _joined(self, columns: Sequence[Column], position: int) -> list[str]:
        """Return the columns' values as text, joined row by row."""
        found = list(map("".join, zip(*[map(str, column) for column in columns], strict=True)))
        found = found or [""] * self.rows.count
        longest = max(map(len, found))
        if longest > self.expander.limits.output:
            reason = f"the text gets longer than {self.expander.limits.output} characters"
            raise self.source.error(position, reason)
        self.spent.characters += longest
        return found

    def _value(self, operations: Sequence[Operation]) -> Column:
        stack: list[Column] = []
        for operation in operations:
            self.spent.steps += 1
            if self.spent.steps > self.expander.limits.steps:
                raise self.source.error(0, f"expanding it takes more than {self.expander.limits.steps} steps")
            match operation:
                case Constant(value):
                    stack.append([value] * self.rows.count)
                case Name(name, arguments, position):
                    values = [stack.pop() for _ in arguments or ()][::-1]
                    stack.append(self._named(name, arguments, values, position))
                case Binary(sign, position):
                    right, left = stack.pop(), stack.pop()
                    stack.append(self._binary(sign, left, right, position))
        return stack.pop()

    def _named(self, name: str, arguments: tuple[str, ...] | None, values: Sequence[Column], position: int) -> Column:
        definitions, active = self.expander.definitions, self.active
        if name in self.variables:
            if arguments is not None:
                raise self.source.error(position, f"{name!r} is a value, and takes no arguments")
            return self.variables[name]
        if name not in definitions:
            if active:
                advice = f"pass it as an argument: {{{{{active[-1]}({name}=...)}}}}"
            else:
                known = ", ".join(sorted({*self.variables, *definitions})[:20])
                advice = f"known here: {known or 'none'}"
            raise self.source.error(position, f"there is no template or variable {name!r}; {advice}")
        if name in active:
            cycle = " -> ".join([*active, name])
            raise self.source.error(position, f"the template {name!r} uses itself: {cycle}")
        if len(active) >= self.expander.limits.depth:
            raise self.source.error(position, f"templates may nest {self.expander.limits.depth} deep")
        given = dict(zip(arguments or (), values, strict=True))
        inner = _Expansion(self.expander, definitions[name], self.rows, given, self.spent, (*active, name))
        made = inner.column(self.expander.body(name))
        return made if isinstance(made[0], str) else list(map(str, made))

    def _binary(self, sign: str, left: Column, right: Column, position: int) -> Column:
        is_text = isinstance(left[0], str), isinstance(right[0], str)
        if sign == "~" or (sign == "+" and all(is_text)):
            return self._joined([left, right], position)
        if sign == "%" and is_text == (True, False):
            if not all(map(_PATTERN.fullmatch, set(left))):
                raise self.source.error(position, "only one %d, %4d or %04d (and %%) can stand in text before '%'")
            return self._joined([list(map(operator.mod, left, right))], position)
        if any(is_text):
            advice = "; '~' joins texts" if sign == "+" else ""
            raise self.source.error(position, f"{sign!r} needs integers, and one of these is text{advice}")
        values: list[int] = []
        try:
            values.extend(map(_ARITHMETIC[sign], left, right))
            if min(values) in INTEGERS and max(values) in INTEGERS:
                return values
            row = next(row for row, value in enumerate(values) if value not in INTEGERS)
            reason = "the result is more than 64 bits hold"
        except ZeroDivisionError as error:
            where = self.rows.at(len(values))
            raise DivisionByZero(str(self.source.error(position, f"{sign!r}: division by zero{where}"))) from error
        except ValueError as error:
            row, reason = len(values), str(error)
        raise self.source.error(position, f"{sign!r}: {reason}{self.rows.at(row)}")

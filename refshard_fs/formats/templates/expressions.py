r"""Parse and evaluate the expressions inside ``{{ }}`` in a set. They are never run as code. No I/O here.

The grammar is a subset of jinja's with jinja's precedence (from loose to tight: ``+ -``, ``~``, ``* // %``, ``**``,
unary minus; all are left-associative). An expression of this language has the same value in jinja:

    integers, 'text' or "text" (with the escapes of \\, quotes, n and t), names, name(argument=expression), parentheses

An expression is parsed to operations in the order of evaluation. Each operation is applied to all rows at once, because
an entry of `gen` may make millions of keys.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from refshard_fs.errors import DivisionByZero, ManifestError

KIB: Final = 1024
INTEGERS: Final = range(-(2**63), 2**63)  # the permitted integers, also for intermediate results
ALLOWED: Final = "names, templates with keyword arguments, integers, quoted text, + - * // % ** ~ and parentheses"


class TemplateLimits(msgspec.Struct, frozen=True):
    """Limits on the cost of a set's templates. ManifestError is raised if a limit is exceeded."""

    text: int = 64 * KIB  # characters of a template
    output: int = 64 * KIB  # characters of an expanded text
    terms: int = 100  # operands and operators of an expression
    depth: int = 32  # operations and calls nested in each other
    steps: int = 10_000  # operations for an expanded text
    expanded_steps: int = 100_000_000  # operations for all texts of a set
    # All texts of a set expand to at most ``expanded_text`` characters, or to ``swells`` times their own characters if
    # that is more.
    expanded_text: int = 256 * KIB * KIB
    swells: int = 16
    generated: int = 2_000_000  # keys of all entries of `gen`
    generated_steps: int = 1_000_000_000  # operations for all these keys
    generated_text: int = 512 * KIB * KIB  # characters of all these keys and their URLs


def clip(text: str, length: int = 150) -> str:
    """Shorten a long ``text`` in the middle, for an error."""
    return text if len(text) <= length else f"{text[: length - 35]}...{text[-30:]}"


class TemplateText(msgspec.Struct, frozen=True):
    """The text of a template, and its name in errors."""

    text: str
    name: str = "template"

    def make_error(self, position: int | None, reason: str) -> ManifestError:
        """Make the error that this text cannot be expanded, at the character with the index ``position``, if known."""
        where = "" if position is None else f", column {position + 1}"
        return ManifestError(f"{clip(self.name)} {clip(self.text)!r}{where}: {clip(reason, 400)}")


class Rows(msgspec.Struct, frozen=True):
    """Combinations of values of dimensions: ``count`` rows, with a column of integers for each dimension."""

    count: int
    columns: Mapping[str, Sequence[int]]

    def describe_row(self, row: int) -> str:
        """Describe a row at the end of an error, as in ``at i=3``; "" without dimensions."""
        where = ", ".join(f"{name}={column[row]}" for name, column in self.columns.items())
        return f" at {where}" if where else ""


class Cost(msgspec.Struct):
    """The cost of expanding texts for one row: operations, and characters of all texts, also of intermediate ones."""

    steps: int = 0
    characters: int = 0


Column = Sequence[Any]  # a value for each row: either all are integers, or all are texts


# Parsing.


class Constant(msgspec.Struct, frozen=True):
    """Operation: push an integer or a text on the stack."""

    value: int | str
    position: int


class Name(msgspec.Struct, frozen=True):
    """Operation: push the value of a variable or a template; if it is called, first pop its ``arguments``."""

    name: str
    arguments: tuple[str, ...] | None
    position: int


class Binary(msgspec.Struct, frozen=True):
    """Operation: pop two values, and push the result of + - * // % ** or ~. Negation is subtraction from 0."""

    sign: str
    position: int


Operation = Constant | Name | Binary
TemplatePart = str | tuple[Operation, ...]  # literal text, or an expression

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


def parse(source: TemplateText, names: Container[str], limits: TemplateLimits) -> tuple[TemplatePart, ...]:
    """Split a template into literal texts, and the expressions between ``{{`` and ``}}``.

    ``names`` are the names of templates, which may be any text. If the whole text between braces is such a name, it is
    taken as a name, even if it is not an identifier.
    """
    text = source.text
    if len(text) > limits.text:
        raise source.make_error(
            limits.text, f"it has {len(text)} characters: expected at most {limits.text} in a template"
        )
    parts: list[TemplatePart] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        parts.append(_check_literal(source, position, start))
        end = text.find("}}", start)
        whole = text[start + 2 : end].strip()
        if end >= 0 and whole in names:
            parts.append((Name(whole, None, start + 2),))
            position = end + 2
        else:
            if text[start + 2 : start + 3] in ("-", "+"):
                raise source.make_error(start, "'{{-' and '{{+' trim spaces in jinja: put a space after '{{'")
            parser = _Parser(source, start + 2, limits)
            parts.append(parser.parse_expression())
            position = parser.position
    parts.append(_check_literal(source, position, len(text)))
    return tuple(part for part in parts if part)


def _check_literal(source: TemplateText, start: int, stop: int) -> str:
    """Return literal text. ManifestError if it contains a statement or a comment of jinja."""
    literal = source.text[start:stop]
    for opening in ("{%", "{#"):
        if opening in literal:
            reason = f"{opening!r} (a statement or comment) is supported only with simple_templates=False"
            raise source.make_error(start + literal.index(opening), reason)
    return literal


class _Parser:
    """Parse the tokens of an expression; after each method, ``position`` is after the tokens that it has consumed."""

    def __init__(self, source: TemplateText, position: int, limits: TemplateLimits) -> None:
        self.source = source
        self.limits = limits
        self.position = position
        self.terms = 0
        self.operations: list[Operation] = []
        self._read_token()

    def parse_expression(self) -> tuple[Operation, ...]:
        """Parse the expression up to its ``}}``; ManifestError if it is not in the language."""
        self._parse_expression(1, 1)
        if self.lexeme != "}}":
            raise self._make_unexpected_error()
        return tuple(self.operations)

    def _read_token(self) -> None:
        """Move to the next token, and set ``kind``, ``lexeme`` and ``start``."""
        match = _TOKEN.match(self.source.text, self.position)
        if match is None or match.lastgroup is None:
            raise self._make_token_error()
        self.kind, self.lexeme = match.lastgroup, match[match.lastgroup]
        self.start, self.position = match.start(match.lastgroup), match.end()

    def _make_token_error(self) -> ManifestError:
        text = self.source.text
        start = len(text) - len(text[self.position :].lstrip())
        if "}}" not in text[start:]:
            return self.source.make_error(start, "expected '}}' after '{{', found none")
        if text[start] in "'\"":
            return self.source.make_error(start, f"expected {text[start]} at the end of a quoted text, found none")
        word = re.match(r"[\w.]+|.", text[start:], re.DOTALL)
        return self.source.make_error(start, f"{word and word.group()!r} is not allowed; expected {ALLOWED}")

    def _make_unexpected_error(self) -> ManifestError:
        problem = "an expression ends too early" if self.lexeme == "}}" else f"unexpected {self.lexeme!r}"
        return self.source.make_error(self.start, f"{problem}; expected {ALLOWED}")

    def _count_term(self, depth: int) -> None:
        """Count an operand or an operator; ManifestError if there are too many, or they are nested too deeply."""
        self.terms += 1
        if self.terms > self.limits.terms:
            problem = f"the expression is too long: expected at most {self.limits.terms} operands and operators"
            raise self.source.make_error(self.start, problem)
        if depth > self.limits.depth:
            problem = f"the expression is nested too deeply: expected at most {self.limits.depth} levels"
            raise self.source.make_error(self.start, problem)

    def _parse_expression(self, tightness: int, depth: int) -> None:
        """Parse operands, and the operators between them that bind at least as tightly as ``tightness``."""
        self._parse_operand(depth)
        while _TIGHTNESS.get(self.lexeme, 0) >= tightness:
            self._count_term(depth)
            sign, position = self.lexeme, self.start
            if sign == "/":
                raise self.source.make_error(
                    position, "'/' makes fractions, which keys and ranges cannot have: use '//'"
                )
            self._read_token()
            self._parse_expression(_TIGHTNESS[sign] + 1, depth)
            self.operations.append(Binary(sign, position))

    def _parse_operand(self, depth: int) -> None:
        self._count_term(depth)
        kind, lexeme, position = self.kind, self.lexeme, self.start
        if kind == "sign" and lexeme not in ("-", "("):
            raise self._make_unexpected_error()
        self._read_token()
        match kind:
            case "number":
                digits = lexeme.replace("_", "")
                if len(digits) > 19 or int(digits) not in INTEGERS:
                    raise self.source.make_error(position, f"expected at most 2**63-1 (64 bits), found {lexeme[:40]}")
                self.operations.append(Constant(int(digits), position))
            case "text":
                text = _ESCAPE.sub(lambda match: self._unescape(match, position), lexeme[1:-1])
                self.operations.append(Constant(text, position))
            case "name":
                arguments = self._parse_arguments(depth + 1) if self.lexeme == "(" else None
                self.operations.append(Name(lexeme, arguments, position))
            case _ if lexeme == "-":
                self.operations.append(Constant(0, position))
                self._parse_operand(depth + 1)
                self.operations.append(Binary("-", position))
            case _:
                self._parse_expression(1, depth + 1)
                self._expect_sign(")")

    def _parse_arguments(self, depth: int) -> tuple[str, ...]:
        self._read_token()
        names: list[str] = []
        while self.lexeme != ")":
            kind, name, position = self.kind, self.lexeme, self.start
            self._read_token()
            if kind != "name" or self.lexeme != "=":
                reason = f"expected a keyword argument, as in name(argument=value), found {name!r}"
                raise self.source.make_error(position, reason)
            if name in names:
                raise self.source.make_error(position, f"expected the argument {name!r} once, found it twice")
            self._read_token()
            self._parse_expression(1, depth)
            names.append(name)
            if self.lexeme != ")":
                self._expect_sign(",")
        self._read_token()
        return tuple(names)

    def _expect_sign(self, sign: str) -> None:
        if self.lexeme != sign:
            raise self._make_unexpected_error()
        self._read_token()

    def _unescape(self, match: re.Match[str], position: int) -> str:
        if match[1] not in _ESCAPED:
            escapes = r"\\ \' \" \n \t"
            raise self.source.make_error(position, f"expected one of the escapes {escapes}, found {match[0]}")
        return _ESCAPED[match[1]]


# Operations on whole columns.


_PATTERN: Final = re.compile(r"(?:[^%]|%%)*%0?(?:[1-9][0-9]?)?d(?:[^%]|%%)*", re.DOTALL)


def _compute_power(base: int, exponent: int) -> int:
    """Return ``base ** exponent``. Raise ValueError if the result is not an integer or does not fit into 64 bits."""
    if exponent < 0:
        raise ValueError(f"expected an exponent of at least 0, got {base} ** {exponent}")
    if exponent > 63 and abs(base) > 1:
        raise ValueError(f"expected a result of 64 bits, from -2**63 to 2**63-1, got {base} ** {exponent}")
    result: int = base**exponent
    return result


_ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _compute_power,
}


class SimpleExpander:
    """Expand texts in the language of this module, within ``limits``."""

    def __init__(self, definitions: Mapping[str, TemplateText], limits: TemplateLimits) -> None:
        self.limits = limits
        self.definitions = definitions
        self._parsed: dict[str, tuple[TemplatePart, ...]] = {}

    def expand_column(self, source: TemplateText, rows: Rows, cost: Cost) -> Column:
        """Expand ``source`` in each row, to integers if it is a single integer expression. Add the cost to ``cost``."""
        try:
            parts = parse(source, self.definitions, self.limits)
            return _Expansion(self, source, rows, rows.columns, cost, ()).expand_parts(parts)
        except RecursionError:  # the limits prevent it, unless the caller's stack is deep already
            reason = "its templates and expressions are nested too deeply: expected fewer levels"
            raise source.make_error(None, reason) from None

    def parse_definition(self, name: str) -> tuple[TemplatePart, ...]:
        """Return the parts of a template. A text without ``{{`` is literal, even if it has ``{%`` or ``{#``."""
        if name not in self._parsed:
            source = self.definitions[name]
            literal = "{{" not in source.text and len(source.text) <= self.limits.text
            self._parsed[name] = (source.text,) if literal else parse(source, self.definitions, self.limits)
        return self._parsed[name]


class _Expansion(msgspec.Struct):
    """The expansion of a text: the values of its ``variables``, and the templates that led to it (``active``)."""

    expander: SimpleExpander
    source: TemplateText
    rows: Rows
    variables: Mapping[str, Column]
    cost: Cost
    active: tuple[str, ...]

    def expand_parts(self, parts: Sequence[TemplatePart]) -> Column:
        """Expand the parts of the text in each row."""
        columns = [
            [part] * self.rows.count if isinstance(part, str) else self._evaluate_expression(part) for part in parts
        ]
        return columns[0] if len(columns) == 1 else self._join_columns(columns, 0)

    def _join_columns(self, columns: Sequence[Column], position: int) -> list[str]:
        """Join the values of columns to a text in each row."""
        texts = list(map("".join, zip(*[map(str, column) for column in columns], strict=True)))
        texts = texts or [""] * self.rows.count
        longest = max(map(len, texts))
        if longest > self.expander.limits.output:
            reason = f"the expanded text has {longest} characters: expected at most {self.expander.limits.output}"
            raise self.source.make_error(position, reason)
        self.cost.characters += longest
        return texts

    def _evaluate_expression(self, operations: Sequence[Operation]) -> Column:
        """Return the value of an expression in each row."""
        stack: list[Column] = []
        for operation in operations:
            self.cost.steps += 1
            if self.cost.steps > self.expander.limits.steps:
                raise self.source.make_error(
                    0, f"its expansion takes too many operations: expected at most {self.expander.limits.steps}"
                )
            match operation:
                case Constant(value):
                    stack.append([value] * self.rows.count)
                case Name(name, arguments, position):
                    values = [stack.pop() for _ in arguments or ()][::-1]
                    stack.append(self._resolve_name(name, arguments, values, position))
                case Binary(sign, position):
                    right, left = stack.pop(), stack.pop()
                    stack.append(self._apply_operator(sign, left, right, position))
        return stack.pop()

    def _resolve_name(
        self, name: str, arguments: tuple[str, ...] | None, values: Sequence[Column], position: int
    ) -> Column:
        """Return the value of a variable or a template, which may be called with ``arguments``, in each row."""
        definitions, active = self.expander.definitions, self.active
        if name in self.variables:
            if arguments is not None:
                raise self.source.make_error(position, f"{name!r} is a variable: expected it without arguments")
            return self.variables[name]
        if name not in definitions:
            if active:
                advice = f"expected a template or an argument of {active[-1]!r}: {{{{{active[-1]}({name}=...)}}}}"
            else:
                known = ", ".join(sorted({*self.variables, *definitions})[:20])
                advice = f"expected one of: {known or 'none'}"
            raise self.source.make_error(position, f"there is no template or variable {name!r}; {advice}")
        if name in active:
            cycle = " -> ".join([*active, name])
            raise self.source.make_error(position, f"expected templates without a loop, found {cycle}")
        if len(active) >= self.expander.limits.depth:
            reason = f"templates are nested too deeply: expected at most {self.expander.limits.depth} levels"
            raise self.source.make_error(position, reason)
        variables = dict(zip(arguments or (), values, strict=True))
        inner = _Expansion(self.expander, definitions[name], self.rows, variables, self.cost, (*active, name))
        column = inner.expand_parts(self.expander.parse_definition(name))
        return column if isinstance(column[0], str) else list(map(str, column))

    def _apply_operator(self, sign: str, left: Column, right: Column, position: int) -> Column:
        """Return the result of an operator in each row."""
        is_text = isinstance(left[0], str), isinstance(right[0], str)
        if sign == "~" or (sign == "+" and all(is_text)):
            return self._join_columns([left, right], position)
        if sign == "%" and is_text == (True, False):
            if not all(map(_PATTERN.fullmatch, set(left))):
                wrong = next(str(text) for text in left if not _PATTERN.fullmatch(str(text)))
                reason = f"expected one %d, %4d or %04d (and any %%) in the text before '%', found {clip(wrong)!r}"
                raise self.source.make_error(position, reason)
            return self._join_columns([list(map(operator.mod, left, right))], position)
        if any(is_text):
            advice = "; '~' joins texts" if sign == "+" else ""
            found = next(operand[0] for operand in (left, right) if isinstance(operand[0], str))
            reason = f"{sign!r}: expected two integers, found the text {clip(found)!r}{advice}"
            raise self.source.make_error(position, reason)
        values: list[int] = []
        try:
            values.extend(map(_ARITHMETIC[sign], left, right))
            if min(values) in INTEGERS and max(values) in INTEGERS:
                return values
            row = next(row for row, value in enumerate(values) if value not in INTEGERS)
            reason = f"expected a result of 64 bits, from -2**63 to 2**63-1, got {values[row]}"
        except ZeroDivisionError as error:
            where = self.rows.describe_row(len(values))
            raise DivisionByZero(str(self.source.make_error(position, f"{sign!r}: division by zero{where}"))) from error
        except ValueError as error:
            row, reason = len(values), str(error)
        raise self.source.make_error(position, f"{sign!r}: {reason}{self.rows.describe_row(row)}")

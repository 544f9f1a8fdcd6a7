r"""The little language inside ``{{ }}``: what a manifest may compute, parsed into a closed set of frozen values.

Nothing here runs anything. The grammar is a subset of jinja's, with jinja's precedence (from loose to tight:
``+ -``, ``~``, ``* // %``, ``**``, unary minus, all of them binding to the left), so that whatever parses means the
same to jinja:

    integers, 'text' or "text" (with the escapes of \\, quotes, n and t), names, name(argument=expression), parentheses

There are no attributes, subscripts, filters, statements, fractions or positional arguments to refuse later.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

import msgspec

from refshard_fs.errors import ManifestError

__all__ = [
    "Binary",
    "Expression",
    "INTEGERS",
    "Value",
    "Name",
    "Source",
    "TemplateLimits",
    "clip",
    "parse",
]

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

"""What templates in the sandbox may call: filters, methods, tests and operators, each within the text's budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, StrictUndefined, Undefined

from refshard_fs.manifests.evaluator import pad, power
from refshard_fs.manifests.expressions import INTEGERS, Source, TemplateLimits

__all__ = [
    "ARITHMETICS",
    "BUDGET",
    "COUNTED",
    "FILTERS",
    "JOINED",
    "TESTS",
    "Budget",
    "Function",
    "arithmetic",
    "budget_of",
]

# Cannot be spelled in a template, as names there have no spaces.
BUDGET: Final = "the budget"
COUNTED: Final = "counted loop"
JOINED: Final = "joined"


class Budget:
    """What is left to one rendered text; used by one thread."""

    def __init__(self, limits: TemplateLimits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.depth = 0

    def charge(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise SecurityError(f"it takes more than {self.limits.steps} steps")

    def value(self, value: Any) -> Any:
        """Return ``value``, known to be small and plain."""
        match value:
            case StrictUndefined():
                str(value)  # raises jinja's error for this name
            case Undefined():  # an "if" without "else"
                return ""
            case str():
                self.length(len(value))
                self.charge(len(value) >> 10)
                return value
            case bool() | float() | None:
                return value
            case int() if value in INTEGERS:
                return value
            case int():
                raise SecurityError("an integer is more than 64 bits hold")
            case Function():
                raise SecurityError(f"the template {value.name!r} takes arguments: {value.name}(argument=value)")
        raise SecurityError(f"a value may be text or a number, not {type(value).__name__}")

    def text(self, value: Any) -> str:
        plain: str = value if isinstance(value, str) else str(self.value(value))
        return plain

    def length(self, characters: int) -> None:
        if characters > self.limits.output:
            raise SecurityError(f"a text gets longer than {self.limits.output} characters")


def budget_of(context: Context) -> Budget:
    """Return the budget of the text that is rendered."""
    budget: Budget = context.get(BUDGET)
    return budget


class Renders(Protocol):
    """What makes texts of templates."""

    definitions: Mapping[str, Source]

    def render(self, source: Source, variables: Mapping[str, Any], budget: Budget) -> str:
        """Return the text of ``source``, within ``budget``."""


class Function:
    """A template that holds ``{{ }}``: callable with keyword arguments from other templates."""

    def __init__(self, name: str, compiler: Renders) -> None:
        self.name = name
        self.compiler = compiler

    @jinja2.pass_context
    def __call__(self, context: Context, /, *unnamed: Any, **arguments: Any) -> str:
        budget = budget_of(context)
        if unnamed:
            raise SecurityError(f"the template {self.name!r} takes keyword arguments: {self.name}(argument=value)")
        budget.depth += 1
        if budget.depth > budget.limits.depth:
            raise SecurityError(f"templates nest more than {budget.limits.depth} deep: {self.name!r} uses itself?")
        values = {key: budget.value(value) for key, value in arguments.items()}
        try:
            return self.compiler.render(self.compiler.definitions[self.name], values, budget)
        finally:
            budget.depth -= 1


# Filters and methods: the same functions, called with the text first.


def _padded(fill: Callable[[str, int], str]) -> Callable[..., str]:
    def padded(context: Context, value: Any, width: int) -> str:
        budget_of(context).length(int(width))
        return fill(budget_of(context).text(value), width)

    return padded


def _changed(change: Callable[[str], Any]) -> Callable[..., Any]:
    return lambda context, value: change(budget_of(context).text(value))


def _replace(context: Context, value: Any, old: str, new: str) -> str:
    text = budget_of(context).text(value)
    budget_of(context).length(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _int(context: Context, value: Any) -> int:
    return int(budget_of(context).value(value))  # Python itself refuses text of more than 4,300 digits


def _default(context: Context, value: Any, other: Any = "", boolean: bool = False) -> Any:
    return other if isinstance(value, Undefined) or (boolean and not value) else value


def _format(context: Context, value: str, number: int) -> str:
    return pad(budget_of(context).text(value))[0](_integer(number))


def _integer(value: Any) -> int:
    match value:
        case int():
            return value
    raise TypeError(f"an integer is needed, not {type(value).__name__}")


def _counted(context: Context, values: Iterable[Any], steps: int) -> Iterator[Any]:
    for value in values:
        budget_of(context).charge(steps)
        yield budget_of(context).value(value)


def _joined(context: Context, *values: Any) -> str:
    texts = [budget_of(context).text(value) for value in values]
    budget_of(context).length(sum(map(len, texts)))
    return "".join(texts)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _changed(getattr(str, name)) for name in ("lower", "upper", "title", "capitalize")},
    **{name: _changed(getattr(str, name)) for name in ("strip", "lstrip", "rstrip")},
    **{name: _padded(getattr(str, name)) for name in ("zfill", "rjust", "ljust", "center")},
    "abs": lambda context, value: abs(budget_of(context).value(value)),
    "count": _changed(len),
    "d": _default,
    "default": _default,
    "format": _format,
    "int": _int,
    "length": _changed(len),
    "replace": _replace,
    "string": _changed(str),
    "trim": _changed(str.strip),
    COUNTED: _counted,
    JOINED: _joined,
}
TESTS: Final[Mapping[str, Callable[..., bool]]] = {
    # jinja's own even and odd take '%999999999d' % 2 of a text
    "defined": lambda value: not isinstance(value, Undefined),
    "divisibleby": lambda value, other: _integer(value) % _integer(other) == 0,
    "even": lambda value: _integer(value) % 2 == 0,
    "none": lambda value: value is None,
    "odd": lambda value: _integer(value) % 2 == 1,
    "undefined": lambda value: isinstance(value, Undefined),
}


def arithmetic(operator: str, left: Any, right: Any) -> Any:
    """Return what an operator makes of two values; TypeError where that is nothing."""
    match operator, left, right:
        case "+", str(), str():
            return left + right
        case "%", str(), int():
            return pad(left)[0](right)
        case _, (int() | float()), (int() | float()):
            return ARITHMETICS[operator](left, right)
    raise TypeError(f"{operator!r} does not work on {type(left).__name__} and {type(right).__name__}")


def _power(left: float, right: float) -> float:
    whole = isinstance(left, int) and isinstance(right, int) and right >= 0
    raised: float = power(int(left), int(right)) if whole else float(left) ** right
    return raised


ARITHMETICS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "**": _power,
}

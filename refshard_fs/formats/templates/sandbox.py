"""Full jinja2 for templates (``simple_templates=False``), held so that it can neither reach out nor run away.

jinja2's immutable sandbox keeps a template from Python's objects, but lets it take all the memory and time there is
(``'a' * 10**9``, nested loops, doubling by ``{% set %}``). So, on top of it:

- a parsed template may hold only the nodes in `_NODES`; of filters, methods and tests only those named here exist;
- every value is text, a number, a boolean or None, never a container: texts and integers are bounded where they arise;
- a budget of steps per rendered text is charged for every node, loop pass and kilobyte of text.

jinja's own rules hold otherwise, with two exceptions: an undefined name is an error, and a trailing newline stays.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.evaluator import Column, Computed, Constant, Rows, pad, power
from refshard_fs.formats.templates.expressions import INTEGERS, Source, TemplateLimits

__all__ = [
    "ARITHMETICS",
    "BUDGET",
    "Budget",
    "COUNTED",
    "FILTERS",
    "Function",
    "JOINED",
    "JinjaCompiler",
    "TESTS",
    "arithmetic",
    "budget_of",
]

# ----------------------------------------------------------------------------------------------------
# What templates in the sandbox may call: filters, methods, tests and operators, each within the text's budget.


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


STEP: Final = 10  # what a step here takes, in operations over a column

_ARITHMETIC: Final = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow)
_NODES: Final = frozenset(
    {
        *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
        *(nodes.Name, nodes.Const, nodes.Call, nodes.Filter, nodes.Test, nodes.Keyword, nodes.Getitem, nodes.Slice),
        *(nodes.Neg, nodes.Pos, nodes.Not, nodes.And, nodes.Or, nodes.CondExpr, nodes.Compare, nodes.Operand),
        *(nodes.Concat, *_ARITHMETIC),
    }
)
_LOOP: Final = ("index", "index0", "first", "last")
_FAILURES: Final = (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError)
_TOO_DEEP: Final = (RecursionError, SyntaxError, MemoryError)  # of Python's compiler, as jinja compiles to Python


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with nothing in it but the functions above."""

    intercepted_binops = frozenset(ARITHMETICS)
    intercepted_unops = frozenset("+-")

    def __init__(self) -> None:
        # Not optimised: constants are computed while rendering, where the budget is.
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, optimized=False, finalize=_finalize)
        self.globals = {}
        self.filters = {name: jinja2.pass_context(function) for name, function in FILTERS.items()}
        self.tests = dict(TESTS)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
        return budget.value(arithmetic(operator, budget.value(left), budget.value(right)))

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        return self.call_binop(context, operator, 0, arg)

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(obj, Function)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return super().getattr(obj, attribute)
        raise SecurityError(f"the attribute {attribute!r} is not allowed")

    def getitem(self, obj: Any, argument: Any) -> Any:
        match obj, argument:
            case str(), int():
                return obj[argument]
        raise SecurityError("only texts have items, by integers")


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    return budget_of(context).value(value)


class _Guard(NodeTransformer):
    """Refuses what is not in `_NODES`, and routes through the budget what the sandbox would compile to plain Python."""

    def __init__(self, source: Source, environment: _Environment, functions: Container[str]) -> None:
        self.source = source
        self.functions = functions
        self.environment = environment
        self.count = 0

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.count += 1
        if type(node) not in _NODES:
            raise self._refused(node, type(node).__name__)
        return super().generic_visit(node, *args, **kwargs)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value not in INTEGERS:
            raise self._refused(node, "an integer of more than 64 bits")
        return self.generic_visit(node)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        if type(node.target) is not nodes.Name:
            raise self._refused(node, "assigning to more than a name")
        return self.generic_visit(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive or type(node.target) is not nodes.Name:
            raise self._refused(node, "a recursive loop, or one over pairs,")
        before = self.count
        items = self._flat(node.iter)
        node.iter = nodes.Const("", lineno=node.lineno, environment=self.environment)
        self.generic_visit(node)
        steps = nodes.Const(self.count - before, lineno=node.lineno, environment=self.environment)
        node.iter = self._filter(COUNTED, items, [steps])
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        node.expr = self._flat(node.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(JOINED, node.nodes[0], node.nodes[1:])

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        if node.node is None or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self._refused(node, "a filter block, or a filter with * or **,")
        return self.generic_visit(node)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self._refused(node, "a call with * or **")
        match node.node:
            case nodes.Getattr(attr=str(method), node=nodes.Node() as text) if method in FILTERS and not node.kwargs:
                return self.generic_visit(self._filter(method, text, node.args))
            case nodes.Name(name=str(name)) if name in self.functions:
                return self.generic_visit(node)
        raise self._refused(node, "a call of anything but templates that take arguments, and a few methods of text,")

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        self.count += 1
        match node.node:
            case nodes.Name(name="loop") if node.attr in _LOOP:
                return node
        raise self._refused(node, f"the attribute {node.attr!r}")

    def _flat(self, node: nodes.Node) -> nodes.Expr:
        """Visit what is looped over or compared with: a list may stand there, so that no value ever is one."""
        match node:
            case nodes.List() | nodes.Tuple():
                self.count += 1
                node.items = [self.visit(item) for item in node.items]
                return node
        visited: nodes.Expr = self.visit(node)
        return visited

    def _filter(self, name: str, value: nodes.Expr, arguments: list[nodes.Expr]) -> nodes.Filter:
        return nodes.Filter(value, name, arguments, [], None, None, lineno=value.lineno, environment=self.environment)

    def _refused(self, node: nodes.Node, what: str) -> ManifestError:
        return self.source.error(None, f"line {node.lineno or 1}: {what} is not allowed in a manifest's templates")


class JinjaCompiler:
    """Compiles texts that use the templates in ``definitions``, within ``limits``; see `evaluator.Compiler`."""

    def __init__(self, definitions: Mapping[str, Source], limits: TemplateLimits) -> None:
        self.limits = limits
        self.definitions = definitions
        self._environment = _Environment()
        self._compiled: dict[str, tuple[jinja2.Template, int]] = {}
        self._spent = 0
        self._values: dict[str, str | Function] = {
            name: Function(name, self) if "{{" in source.text else source.text for name, source in definitions.items()
        }

    def compile(self, source: Source, variables: Mapping[str, Column]) -> Column:
        """Return the column of texts that ``source`` expands to."""
        if "{{" not in source.text and "{%" not in source.text and "{#" not in source.text:
            return Constant(source.text)
        constants = {name: column.value for name, column in variables.items() if isinstance(column, Constant)}
        spent = 0

        def run(rows: Rows) -> Iterator[str]:
            nonlocal spent
            for row in range(rows.count):
                values = {name: column[row] for name, column in rows.columns.items()}
                budget = Budget(self.limits)
                text = self.render(source, {**constants, **values}, budget)
                spent += STEP * (self.limits.steps - budget.steps)
                if spent > self.limits.generated_steps:
                    raise source.error(None, "it takes more operations than limits.generated_steps allows")
                if not rows.columns:  # of a gen, all rows are counted above
                    self._spent += self.limits.steps - budget.steps
                if self._spent > self.limits.expanded_steps:
                    raise source.error(None, "all texts take more operations than limits.expanded_steps allows")
                yield text

        return Computed("text", self.limits.output, STEP * self._template(source)[1], 1, run)

    def render(self, source: Source, variables: Mapping[str, Any], budget: Budget) -> str:
        """Return ``source`` with every expression and statement done; ManifestError where that fails."""
        template, steps = self._template(source)
        pieces: list[str] = []
        try:
            budget.charge(steps)
            for piece in template.generate({**self._values, **variables, BUDGET: budget}):
                pieces.append(piece)
                budget.length(sum(map(len, pieces)))
        except ManifestError:
            raise
        except _TOO_DEEP:
            raise source.error(None, "it nests too deep") from None
        except _FAILURES as error:
            raise source.error(None, str(error) or type(error).__name__) from None
        return "".join(pieces)

    def _template(self, source: Source) -> tuple[jinja2.Template, int]:
        """Return the compiled template and its number of nodes."""
        found = self._compiled.get(source.text)
        if found is None:
            if len(source.text) > self.limits.text:
                raise source.error(None, f"a template may have {self.limits.text} characters")
            functions = {name for name, value in self._values.items() if isinstance(value, Function)}
            guard = _Guard(source, self._environment, functions)
            try:
                tree = guard.visit(self._environment.parse(source.text))
                if guard.count > self.limits.steps // 4:  # compiling a node takes longer than running it
                    raise source.error(None, f"it has more than {self.limits.steps // 4} operations")
                found = self._environment.from_string(tree), guard.count
            except ManifestError:
                raise
            except _TOO_DEEP:
                raise source.error(None, "it nests too deep") from None
            except _FAILURES as error:
                raise source.error(None, str(error) or type(error).__name__) from None
            if len(self._compiled) >= 256:
                self._compiled = {}
            self._compiled[source.text] = found
        return found

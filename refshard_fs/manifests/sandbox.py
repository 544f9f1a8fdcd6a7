"""Full jinja2 for templates (``simple_templates=False``), held so that it can neither reach out nor run away.

jinja2's immutable sandbox keeps a template from Python's objects, but lets it take all the memory and time there is
(``'a' * 10**9``, nested loops, doubling by ``{% set %}``). So, on top of it:

- a parsed template may hold only the nodes in `_NODES`; of filters, methods and tests only those named here exist;
- every value is text, a number, a boolean or None, never a container: texts and integers are bounded where they arise;
- a budget of steps per rendered text is charged for every node, loop pass and kilobyte of text.

jinja's own rules hold otherwise, with two exceptions: an undefined name is an error, and a trailing newline stays.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from refshard_fs.errors import ManifestError
from refshard_fs.manifests.evaluator import Column, Computed, Constant, Rows
from refshard_fs.manifests.expressions import INTEGERS, Source, TemplateLimits
from refshard_fs.manifests.sandbox_functions import (
    ARITHMETICS,
    BUDGET,
    COUNTED,
    FILTERS,
    JOINED,
    TESTS,
    Budget,
    Function,
    arithmetic,
    budget_of,
)

__all__ = ["JinjaCompiler"]

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

"""Templates by jinja2 (``simple_templates=False``), in its own sandbox. No I/O here.

The sandbox keeps templates from Python's objects. Time and memory it does not bound, so this is for manifests that the
user trusts: whoever opens a manifest sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from refshard_fs.errors import DivisionByZero, ManifestError
from refshard_fs.formats.templates.expressions import Column, Rows, Source, Spent, TemplateLimits

COMPILED: Final = 256  # templates that are remembered


class JinjaExpander:
    """Expands texts that use the templates in ``definitions``; see `expressions.Expander`.

    A template that holds ``{{`` is called with keyword arguments, others are texts. An undefined name is an error.
    """

    def __init__(self, definitions: Mapping[str, Source], limits: TemplateLimits) -> None:
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        self._template = lru_cache(COMPILED)(environment.from_string)
        self._limits = limits
        self._names = {
            name: self._function(source) if "{{" in source.text else source.text for name, source in definitions.items()
        }

    def column(self, source: Source, rows: Rows, spent: Spent) -> Column:
        spent.steps += 1
        spent.characters += self._limits.output
        variables = ({name: column[row] for name, column in rows.columns.items()} for row in range(rows.count))
        return [self._render(source, some) for some in variables]

    def _function(self, source: Source) -> Callable[..., str]:
        return lambda **arguments: self._render(source, arguments)

    def _render(self, source: Source, variables: Mapping[str, Any]) -> str:
        try:
            text = self._template(source.text).render({**self._names, **variables})
        except ManifestError:
            raise
        except ZeroDivisionError as error:
            raise DivisionByZero(str(source.error(None, str(error)))) from error
        except RecursionError:
            raise source.error(None, "its templates nest too deep, or one of them uses itself") from None
        except Exception as error:  # a template may raise what Python's operators and methods do
            raise source.error(None, str(error) or type(error).__name__) from error
        if len(text) > self._limits.output:
            raise source.error(None, f"the text is longer than {self._limits.output} characters")
        return text

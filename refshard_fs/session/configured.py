"""What fsspec's configuration says of our arguments: ``conf`` files, and ``FSSPEC_REFSHARD_...`` in the environment.

fsspec hands text on as text, and INI files hold nothing else; here it becomes what the argument is: a number, a truth
value, or, where it is spelled as JSON, an object or a list.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

__all__ = ["configured"]

_PLAIN: Final = {"int": int, "float": float, "bool": bool}


def configured(conf: Mapping[str, Any], constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that ``conf`` has for ``constructor``; ValueError if one cannot be what it is."""
    parameters = inspect.signature(constructor).parameters
    return {
        name: _typed(name, value, parameters[name].annotation)
        if name in parameters and isinstance(value, str)
        else value
        for name, value in conf.items()
    }


def _typed(name: str, text: str, annotation: str) -> Any:
    kind = _PLAIN.get(annotation)
    try:
        if kind is not None:
            return msgspec.convert(text, kind, strict=False)
        return json.loads(text) if name != "fo" and text.startswith(("{", "[")) else text
    except ValueError as e:  # msgspec's ValidationError is one
        raise ValueError(f"fsspec's configuration says {name}={text!r} for refshard: {e}") from e

"""What a filesystem is given, before fsspec stores and compares it: the same in every process, typed and checked."""

from __future__ import annotations

import inspect
import json
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import fsspec
import msgspec
from fsspec.asyn import AsyncFileSystem

from refshard_fs.session.in_memory_source import source_of
from refshard_fs.session.overlay_sharing import BY_URL, FSSPEC_ARGUMENTS, shared

SESSION: Final = "session"  # the argument that names the session which copies of a filesystem share
_PLAIN: Final = {"int": int, "float": float, "bool": bool}  # annotations of arguments that text can spell


class NormalizingMeta(type(AsyncFileSystem)):  # type: ignore[misc]  # fsspec is untyped: its metaclass is Any
    """Turns ``fo`` into what means the same everywhere, before fsspec stores and compares the arguments."""

    @property
    def constructor(cls) -> Callable[..., Any]:
        """The ``__init__`` whose arguments these are; subclasses may have others."""
        found: Callable[..., Any] = next(
            vars(base)["__init__"] for base in reversed(cls.__mro__) if isinstance(base, NormalizingMeta)
        )
        return found

    def __call__(cls, fo: Any = None, *args: Any, **kwargs: Any) -> Any:
        by_url = bool(kwargs.pop(BY_URL, False))
        session = kwargs.pop(SESSION, None)
        named = dict(zip(_parameters(cls.constructor)[1:], args, strict=False)) | kwargs if args else kwargs
        conf = fsspec.config.conf.get("refshard")
        if conf:  # fsspec applies it, too, but as text, and not to what is given by position
            args, named = (), configured(conf, cls.constructor) | named
            kwargs = dict(named)
        given = kwargs.pop("fo", None)
        fo = given if fo is None else fo
        if fo is None:
            raise TypeError("refshard needs fo=: the URL or path of a source, a mapping, bytes or a binary file")
        if not hasattr(fo, "read") and hasattr(fo, "fs") and hasattr(fo, "path"):  # fsspec's OpenFile, or a UPath
            options = {name: value for name, value in fo.fs.storage_options.items() if name not in FSSPEC_ARGUMENTS}
            if options and not {"target_options", "ref_storage_args"} & named.keys():
                kwargs["target_options"] = options
            fo = fo.fs.unstrip_protocol(fo.path)
        overrides, simple = named.get("template_overrides"), named.get("simple_templates", True)
        settled = source_of(fo, named.get("target_protocol"), overrides, simple)
        # Among the arguments, so that whoever is made anew from them shares it.
        overlay, known_by = shared(cls.constructor, {**named, "fo": settled}, by_url=by_url)
        if overlay is not None:
            kwargs["overlay"] = overlay
        if conf and "fo" in conf:
            made = super().__call__(fo=settled, **kwargs)
        else:
            made = super().__call__(settled, *args, **kwargs)
        if known_by is not None:
            made._writer.overlay.arguments = known_by
        made._share(session or uuid.uuid4().hex)
        return made


def check_names(given: Iterable[str], constructor: Callable[..., Any]) -> None:
    """Warn of arguments that mean nothing here; fsspec's own filesystems pass over them."""
    for name in set(given) - FSSPEC_ARGUMENTS:
        import difflib  # for a mistake alone

        near = difflib.get_close_matches(name, [*_parameters(constructor), *FSSPEC_ARGUMENTS], 1)
        hint = f": did you mean {near[0]}=?" if near else ": it has no effect"
        warnings.warn(f"refshard has no argument {name}={hint}", UserWarning, stacklevel=4)


def _parameters(constructor: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a filesystem may be given."""
    return [*inspect.signature(constructor).parameters][1:]  # after self


def configured(conf: Mapping[str, Any], constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments for ``constructor`` that fsspec's configuration has: files, or ``FSSPEC_REFSHARD_...``.

    fsspec hands text on as text; here it becomes what the argument is: a number, a truth value, or, where it is spelled
    as JSON, an object or a list. ValueError if it cannot be that.
    """
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

"""What a filesystem is given, before fsspec stores and compares it: the same in every process, and checked."""

from __future__ import annotations

import inspect
import uuid
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Final

import fsspec
from fsspec.asyn import AsyncFileSystem

from refshard_fs.core.overlay import BY_URL, FSSPEC_ARGUMENTS, shared
from refshard_fs.session.configured import configured
from refshard_fs.session.in_memory_source import settle

__all__ = ["NormalizingMeta", "SESSION", "check_names"]


SESSION: Final = "session"  # the argument that names the session which copies of a filesystem share


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
        conf = fsspec.config.conf.get("refshard")
        named = dict(zip([*parameters_of(cls.constructor)][1:], args, strict=False)) | kwargs if args else kwargs
        if conf:  # fsspec applies it, too, but as text, and not to what is given by position
            args, named = (), configured(conf, cls.constructor) | named
            kwargs = dict(named)
        given = kwargs.pop("fo", None)
        fo = given if fo is None else fo
        if fo is None:
            raise TypeError("refshard needs fo=: the URL or path of a source, a mapping, bytes or a binary file")
        overrides, simple = named.get("template_overrides"), named.get("simple_templates", True)
        settled = settle(fo, named.get("target_protocol"), overrides, simple)
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


def parameters_of(constructor: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a filesystem may be given."""
    return [*inspect.signature(constructor).parameters][1:]  # after self


def check_names(given: Iterable[str], constructor: Callable[..., Any]) -> None:
    """Warn of arguments that mean nothing here; fsspec's own filesystems pass over them."""
    for name in set(given) - FSSPEC_ARGUMENTS:
        known = [*parameters_of(constructor), *FSSPEC_ARGUMENTS]
        import difflib  # for a mistake alone

        near = difflib.get_close_matches(name, known, 1)
        hint = f": did you mean {near[0]}=?" if near else ": it has no effect"
        warnings.warn(f"refshard has no argument {name}={hint}", UserWarning, stacklevel=4)

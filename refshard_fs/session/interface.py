"""What fsspec's base classes bring, with the types that they do not have: for type checkers alone.

fsspec is untyped, so that to a type checker whatever is inherited from it is Any. Nothing of this exists at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, overload

__all__ = ["Interface"]


class Interface:
    """The inherited methods that users call."""

    if TYPE_CHECKING:
        asynchronous: bool
        storage_options: dict[str, Any]

        def exists(self, path: str, **kwargs: Any) -> bool: ...

        def isfile(self, path: str) -> bool: ...

        def isdir(self, path: str) -> bool: ...

        def size(self, path: str) -> int | None: ...

        @overload
        def ls(self, path: str, detail: Literal[True] = True, **kwargs: Any) -> list[dict[str, Any]]: ...
        @overload
        def ls(self, path: str, detail: Literal[False], **kwargs: Any) -> list[str]: ...
        def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[dict[str, Any]] | list[str]: ...

        @overload
        def find(
            self,
            path: str,
            maxdepth: int | None = None,
            withdirs: bool = False,
            *,
            detail: Literal[True],
            **kwargs: Any,
        ) -> dict[str, dict[str, Any]]: ...
        @overload
        def find(
            self,
            path: str,
            maxdepth: int | None = None,
            withdirs: bool = False,
            *,
            detail: Literal[False] = False,
            **kwargs: Any,
        ) -> list[str]: ...
        def find(
            self,
            path: str,
            maxdepth: int | None = None,
            withdirs: bool = False,
            *,
            detail: bool = False,
            **kwargs: Any,
        ) -> dict[str, dict[str, Any]] | list[str]: ...

        def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> list[str]: ...

        def walk(
            self, path: str, maxdepth: int | None = None, topdown: bool = True, **kwargs: Any
        ) -> Iterator[tuple[str, list[str], list[str]]]: ...

        @overload
        def du(self, path: str, total: Literal[True] = True, **kwargs: Any) -> int: ...
        @overload
        def du(self, path: str, total: Literal[False], **kwargs: Any) -> dict[str, int]: ...
        def du(self, path: str, total: bool = True, **kwargs: Any) -> int | dict[str, int]: ...

        @overload
        def cat(self, path: str, recursive: bool = False, **kwargs: Any) -> bytes | dict[str, bytes]: ...
        @overload
        def cat(
            self,
            path: Sequence[str],
            recursive: bool = False,
            on_error: Literal["raise", "omit"] = "raise",
            **kwargs: Any,
        ) -> dict[str, bytes]: ...
        @overload
        def cat(
            self, path: Sequence[str], recursive: bool = False, *, on_error: Literal["return"], **kwargs: Any
        ) -> dict[str, bytes | Exception]: ...
        def cat(
            self, path: str | Sequence[str], recursive: bool = False, on_error: str = "raise", **kwargs: Any
        ) -> Any:
            """Return the bytes of a key, or those of many by key."""

        def cat_ranges(
            self,
            paths: Sequence[str],
            starts: int | Sequence[int | None] | None,
            ends: int | Sequence[int | None] | None,
            max_gap: int | None = None,
            on_error: Literal["return", "raise"] = "return",
            **kwargs: Any,
        ) -> list[bytes | Exception]: ...

        def read_bytes(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes: ...

        def read_text(
            self, path: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
        ) -> str: ...

        @overload
        def open(self, path: str, mode: Literal["rb", "wb", "ab", "xb"] = "rb", **kwargs: Any) -> IO[bytes]: ...
        @overload
        def open(self, path: str, mode: Literal["r", "rt", "w", "wt", "a", "at"], **kwargs: Any) -> TextIO: ...
        def open(self, path: str, mode: str = "rb", **kwargs: Any) -> IO[bytes] | TextIO: ...

        def get(self, rpath: str | list[str], lpath: str | list[str], recursive: bool = False, **kw: Any) -> None: ...

        def pipe(self, path: str | dict[str, bytes], value: bytes | None = None, **kwargs: Any) -> None: ...

        def put(self, lpath: str | list[str], rpath: str | list[str], recursive: bool = False, **kw: Any) -> None: ...

        def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None: ...

        def expand_path(self, path: str | list[str], recursive: bool = False, **kwargs: Any) -> list[str]: ...

        def to_json(self, *, include_password: bool = True) -> str: ...

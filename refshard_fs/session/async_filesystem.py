"""fsspec's base class for asynchronous filesystems. fsspec has no types: the stub beside this file has them."""

from fsspec.asyn import AsyncFileSystem

__all__ = ["AsyncFileSystem"]

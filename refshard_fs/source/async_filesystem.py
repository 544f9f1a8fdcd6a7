"""fsspec's base class for asynchronous filesystems. fsspec has no types: the stub beside this file has them."""

import functools
import inspect

from fsspec import asyn
from fsspec.spec import AbstractFileSystem

__all__ = ["AsyncFileSystem"]


class AsyncFileSystem(asyn.AsyncFileSystem):
    """fsspec's, but `cat` returns errors where it is told to return them, and blocking methods belong to the class.

    fsspec makes them anew for each instance. That takes 0.4 ms, which each task of dask spends that unpickles one, and
    leaves a cycle of references, which only the garbage collector frees.
    """

    mirror_sync_methods = False

    def __init_subclass__(cls, **kwargs):
        """Make the blocking methods of the coroutines of ``cls``, where it has none of its own."""
        super().__init_subclass__(**kwargs)
        for name in {*asyn.async_methods, *dir(asyn.AsyncFileSystem)}:
            default = getattr(AbstractFileSystem, name[1:], None) if name.startswith("_") else None
            coroutine = getattr(cls, name, None)
            if default is not None and default is getattr(cls, name[1:]) and inspect.iscoroutinefunction(coroutine):
                setattr(cls, name[1:], _blocking(name, coroutine, default))

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        """Return the bytes of ``path``, or of each of several as a dict: see fsspec's.

        ``on_error="return"`` has errors in their places, and ``"omit"`` leaves out missing keys, and no others.
        """

        async def boxed():  # fsspec raises an error that a coroutine returns
            return (await self._cat(path, recursive=recursive, on_error=on_error, **kwargs),)

        return asyn.sync(self.loop, boxed)[0]


def _blocking(name, coroutine, default):
    @functools.wraps(coroutine)
    def method(self, *args, **kwargs):
        return asyn.sync(self.loop, getattr(self, name), *args, **kwargs)

    method.__doc__ = coroutine.__doc__ or default.__doc__
    return method

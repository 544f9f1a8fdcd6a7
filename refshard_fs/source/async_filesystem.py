"""A base class for asynchronous filesystems, on top of fsspec's. Its types are in the stub file beside it."""

import functools
import inspect

from fsspec import asyn
from fsspec.spec import AbstractFileSystem

__all__ = ["AsyncFileSystem"]


class AsyncFileSystem(asyn.AsyncFileSystem):
    """fsspec's class with two changes: `cat` respects ``on_error``, and blocking methods are made once for each class.

    fsspec makes blocking methods for each instance. That takes 0.4 ms for each filesystem that a task of dask
    unpickles, and makes a cycle of references, which only the garbage collector can free.
    """

    mirror_sync_methods = False

    def __init_subclass__(cls, **kwargs):
        """Make a blocking method for each coroutine of ``cls``, unless the class defines one."""
        super().__init_subclass__(**kwargs)
        for name in {*asyn.async_methods, *dir(asyn.AsyncFileSystem)}:
            default = getattr(AbstractFileSystem, name[1:], None) if name.startswith("_") else None
            coroutine = getattr(cls, name, None)
            if default is not None and default is getattr(cls, name[1:]) and inspect.iscoroutinefunction(coroutine):
                setattr(cls, name[1:], _make_blocking(name, coroutine, default))

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        """Return the bytes of ``path``, or a dict for several paths, as fsspec's method does.

        ``on_error="return"`` returns each error in place of the bytes. ``"omit"`` leaves out missing keys, and raises
        all other errors.
        """

        async def cat_in_tuple():  # fsspec raises an error that a coroutine returns, but not one in a tuple
            return (await self._cat(path, recursive=recursive, on_error=on_error, **kwargs),)

        return asyn.sync(self.loop, cat_in_tuple)[0]


def _make_blocking(name, coroutine, default):
    """Return a method that runs ``coroutine``, or a subclass's coroutine of the same ``name``, and waits for it."""

    @functools.wraps(coroutine)
    def method(self, *args, **kwargs):
        return asyn.sync(self.loop, getattr(self, name), *args, **kwargs)

    method.__doc__ = coroutine.__doc__ or default.__doc__
    return method

"""fsspec's base class for asynchronous filesystems. fsspec has no types: the stub beside this file has them."""

from fsspec import asyn

__all__ = ["AsyncFileSystem"]


class AsyncFileSystem(asyn.AsyncFileSystem):
    """fsspec's, but `cat` returns errors where it is told to return them."""

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        """Return the bytes of ``path``, or of each of several as a dict: see fsspec's.

        ``on_error="return"`` has errors in their places, and ``"omit"`` leaves out missing keys, and no others.
        """

        async def boxed():  # fsspec raises an error that a coroutine returns
            return (await self._cat(path, recursive=recursive, on_error=on_error, **kwargs),)

        return asyn.sync(self.loop, boxed)[0]

"""Mask and scale values of packed variables block by block.

xarray computes each step for all values, which takes three arrays of the full size. This module applies xarray's
functions to blocks that fit into a core's cache. The functions treat each element alone, so the values are the same,
and a third of the time and of the memory is enough.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

import numpy as np
import xarray as xr

from refshard_fs.reading.selection import WORKERS

BLOCK: Final = 1 << 17  # elements: with 8 bytes each, a block and its results fit into a core's cache
BY_ELEMENT: Final = frozenset(["_apply_mask", "_scale_offset_decoding"])  # functions that treat each element alone


def _find_elementwise_class() -> Any:
    """Return xarray's class of lazy arrays that apply a function; `object` if this xarray does not have the class."""
    for name in ("common", "variables"):  # the class is in `variables` in older versions of xarray
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(f"xarray.coding.{name}")._ElementwiseFunctionArray
    return object


_Elementwise: Any = _find_elementwise_class()


class BlockwiseArray(_Elementwise):  # type: ignore[misc]  # private to xarray
    """A lazy array that applies functions to the values of another lazy array, block by block."""

    def get_duck_array(self) -> Any:
        stored, functions = self._flatten()
        return _apply(functions, stored.get_duck_array())

    async def async_get_duck_array(self) -> Any:
        stored, functions = self._flatten()
        return _apply(functions, await stored.async_get_duck_array())

    def _flatten(self) -> tuple[Any, list[Callable[[Any], Any]]]:
        """Return the stored values and the functions to apply, in the order of application."""
        functions, array = [self.func], self.array
        while _is_by_element(array):
            functions.insert(0, array.func)
            array = array.array
        return array, functions


def unpack_in_blocks(variables: Iterable[xr.Variable]) -> None:
    """Make lazy variables that are packed or masked compute their values block by block."""
    for variable in variables:
        holder, name = variable, "_data"
        while (array := getattr(holder, name, None)) is not None and not isinstance(array, np.ndarray):
            if _is_by_element(array):
                setattr(holder, name, BlockwiseArray(array.array, array.func, array.dtype))
                break
            holder, name = array, "array"


def _is_by_element(array: Any) -> bool:
    """Return whether ``array`` is a lazy array of xarray that applies one of the functions `BY_ELEMENT`."""
    if _Elementwise is object or not isinstance(array, _Elementwise):
        return False
    return getattr(getattr(array.func, "func", None), "__name__", "") in BY_ELEMENT


def _apply(functions: Sequence[Callable[[Any], Any]], values: Any) -> Any:
    """Apply the ``functions``, one after the other, to ``values``, block by block if there are many."""

    def apply_all(block: Any) -> Any:
        for function in functions:
            block = function(block)
        return block

    if type(values) is not np.ndarray or values.size < 2 * BLOCK or not values.flags.c_contiguous:
        return apply_all(values)
    flat = values.reshape(-1)
    first = apply_all(flat[:BLOCK])
    out = np.empty(values.shape, first.dtype)
    whole = out.reshape(-1)
    whole[:BLOCK] = first

    def fill(start: int) -> None:
        whole[start : start + BLOCK] = apply_all(flat[start : start + BLOCK])

    starts = range(BLOCK, flat.size, BLOCK)
    if threading.current_thread() is not threading.main_thread():  # most often a worker of dask, beside other workers
        for start in starts:
            fill(start)
        return out
    with ThreadPoolExecutor(WORKERS) as pool:  # a copied context holds the caller's settings of numpy's warnings
        for _ in pool.map(lambda start, context: context.run(fill, start), starts, [copy_context() for _ in starts]):
            pass
    return out

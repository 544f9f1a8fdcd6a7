"""Types and missing values of arrays as numpy has them, and arrays of one chunk without a codec. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from refshard_fs.core.zarrmeta import ArrayMeta

__all__ = ["dtype_of", "fill_of", "plain", "plain_document"]

_NUMERIC: Final = "biufcmM"


def dtype_of(meta: ArrayMeta) -> np.dtype[Any] | None:
    """Return the type of an array's elements; None where numpy alone cannot read them."""
    name = f"<{meta.dtype}" if meta.zarr_format == 3 and meta.dtype in ("c8", "c16") else meta.dtype
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    return dtype if dtype.kind in _NUMERIC and (meta.zarr_format == 2 or dtype.kind in "biufc") else None


def fill_of(meta: ArrayMeta, dtype: np.dtype[Any]) -> Any:
    """Return the value of elements that are in no chunk; ValueError where that is no plain number."""
    fill = meta.raw.get("fill_value")
    if fill is None:
        return np.zeros((), dtype)[()]
    try:
        if dtype.kind in "mM":
            return np.array(int(fill)).astype("<i8").view(dtype)[()]
        if dtype.kind == "c" and isinstance(fill, list):
            real, imaginary = map(_number, fill)
            return np.array(complex(real, imaginary), dtype)[()]
        return np.array(_number(fill), dtype)[()]
    except (TypeError, ValueError, OverflowError) as e:
        raise ValueError(f"its fill_value is {fill!r}, no value of {dtype}: {e}") from e


def _number(fill: Any) -> Any:
    """Return a fill value, or one half of a complex one, of which JSON may have no number but a name."""
    if fill in ("NaN", "Infinity", "-Infinity"):
        return float(fill)
    if isinstance(fill, str):
        raise ValueError("it is text")  # noqa: TRY004  # one kind of error for all that is no value
    return fill


def plain(meta: ArrayMeta, values: npt.NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the metadata of a one-dimensional array of ``values`` in one uncompressed chunk, and that chunk."""
    doc = plain_document(meta, len(values))
    if meta.zarr_format == 2:
        return doc, np.ascontiguousarray(values, np.dtype(meta.dtype)).tobytes()
    return doc, np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def plain_document(meta: ArrayMeta, count: int) -> dict[str, Any]:
    """Return the metadata of such an array of ``count`` elements."""
    doc = {**meta.raw, "shape": [count]}
    if meta.zarr_format == 2:
        return doc | {"chunks": [max(count, 1)], "compressor": None, "filters": None}
    doc["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [max(count, 1)]}}
    doc["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return doc

"""Many files as one dataset, by one call: `concat` that finds the dimension, and reads metadata alone."""

from __future__ import annotations

from typing import Any

from refshard_fs.sets.concat import concat
from refshard_fs.sets.lazy_set import LazySet


def cube(sets: Any, dim: str | None = None, **arguments: Any) -> LazySet:
    """Return many files as one source: `concat` with ``lazy=True``, which finds out along what they are joined.

    Parameters
    ----------
    sets:
        A pattern (``"s3://bucket/2024/*.nc"``), one with fields that name dimensions
        (``"{member}/tas_{time:%Y%m}.nc"``), a list of URLs, or a table that says where each lies: pairs
        ``(url, {"time": ..., "band": ...})``, a DataFrame with a column ``url`` and one for each dimension, or items of
        STAC (pystac's, or JSON), whose dimensions are ``time`` and, where they have several, ``asset``.
    dim:
        The dimension. By default the values of coordinates tell: the dimension whose coordinate differs from file to
        file, or several, if files form a grid along them; else a scalar coordinate that differs, such as the time of
        a file with one; else a dimension without a coordinate whose length differs. Sets are put in the order of their
        values. A field of a name that only tells files apart (``{year}``, where ``time`` differs) makes no dimension.
    arguments:
        All others of `concat`: ``keep``, ``drop``, ``rename``, ``attrs``, ``join``, ``freq``, ``overlap``, ``chunks``,
        ``on_error``, ``executor``, ``resume``; ``assets``, the names of assets of STAC to take; and those of
        `RefShardFileSystem`.

    Raises
    ------
    ManifestError
        If nothing tells the dimension, or more than one fits; it names the choices. If files do not fit: it names them,
        the variable and the field.

    Examples
    --------
    >>> import tempfile, xarray, refshard_fs
    >>> folder = tempfile.mkdtemp()
    >>> for day in range(3):
    ...     ds = xarray.Dataset({"sst": ("day", [20.0 + day])}, {"day": [day]})
    ...     ds.to_netcdf(f"{folder}/{day}.nc", engine="h5netcdf")
    >>> cube = refshard_fs.cube(f"{folder}/*.nc")
    >>> xarray.open_dataset(cube, engine="refshard")["sst"].values
    array([20., 21., 22.])

    """
    return concat(sets, dim, lazy=True, **arguments)

"""The cases of xarray's own tests of ``combine`` and ``open_mfdataset``: a cube has xarray's result, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:In a future version of xarray")]


class Case(NamedTuple):
    """Datasets in nested lists, xarray's way to combine them, and the arguments of `open`, or words of its error."""

    sets: Any
    combine: Callable[[Any], Any]
    arguments: Any = None
    refused: str = ""


def combine_by_coords(**how: Any) -> Callable[[Any], Any]:
    return lambda sets: xr.combine_by_coords(sets, **how)


def combine_nested(dim: Any, **how: Any) -> Callable[[Any], Any]:
    return lambda sets: xr.combine_nested(sets, concat_dim=dim, **how)


def make_line(values: Any, x: Any, **others: Any) -> xr.Dataset:
    """Return values of ``v`` along ``x``, and other variables along it."""
    every = {"v": values, **others}
    return xr.Dataset({name: ("x", np.asarray(some)) for name, some in every.items()}, {"x": np.asarray(x)})


def make_point(value: float, y: int, x: int) -> xr.Dataset:
    return xr.Dataset({"a": (("y", "x"), [[float(value)]])}, {"y": [y], "x": [x]})


def make_plane(y: Any, x: Any = (0,)) -> xr.Dataset:
    return xr.Dataset(
        {"v": (("x", "y"), np.random.default_rng(len(y)).random((len(x), len(y))))}, {"x": list(x), "y": y}
    )


WHOLE = xr.Dataset(
    {name: (("dim1", "dim2"), np.random.default_rng(n).random((8, 9))) for n, name in enumerate(("var1", "var2"))},
    {"dim2": 0.5 * np.arange(9), "dim3": list("abc"), "numbers": ("dim3", [0, 1, 2])},
)
WHOLE["var3"] = ("dim3", "dim1"), np.random.default_rng(3).random((3, 8))
QUARTERS = [
    [WHOLE.isel(dim1=rows, dim2=columns) for columns in (slice(5), slice(5, 9))] for rows in (slice(4), slice(4, 8))
]
ALIKE: dict[str, Any] = {"data_vars": "minimal", "coords": "minimal", "compat": "equals"}
OUTER: dict[str, Any] = {"join": "outer"}
ALONG_X: dict[str, Any] = {"dim": "x"}

CASES = {
    # nested
    "coordinates": Case([xr.Dataset({"x": [0]}), xr.Dataset({"x": [1]})], combine_by_coords()),
    "one": Case([xr.Dataset({"x": [0, 1]})], combine_by_coords()),
    "variables_in_another_order": Case(
        [xr.Dataset({n: ("a", [k]) for n in names}) for k, names in enumerate(("xy", "yx"))],
        combine_nested("a"),
        {"dim": "a"},
    ),
    "other_coordinate_differs": Case(
        [xr.Dataset({"x": [k], "y": [k]}) for k in (0, 1)], combine_nested("x"), ALONG_X, "different values of 'y'"
    ),
    "new_dimension": Case(
        [make_line([k], [0]) for k in (10.0, 20.0)],
        combine_nested("t"),
        {"dim": "t"},
        "no variable .* has the dimension 't'",
    ),
    "new_coordinate": Case(
        [make_line([k], [0]) for k in (10.0, 20.0)],
        combine_nested(xr.DataArray([100, 150], dims="t", name="t")),
        {"dims": ["t"], "coords": {"t": [100, 150]}},
    ),
    "quarters": Case(QUARTERS, combine_nested(["dim1", "dim2"], **ALIKE), {"dims": ["dim1", "dim2"]}),
    "ragged": Case(
        [[make_point(1, 0, 0)], [make_point(2, 1, 0), make_point(3, 1, 1)]],
        combine_nested(["y", "x"]),
        {"dims": ["y", "x"]},
        "the length along 'x'",
    ),
    "missing_data_new_dimension": Case(
        [make_line([2.0, 3.0], [1, 2]), make_line([1.0, 2.0], [0, 1])],
        combine_nested("t", **OUTER),
        {"dim": "t", **OUTER},
        "'v' of set 0",
    ),
    "no_coordinate": Case([xr.Dataset({"v": ("x", some)}) for some in ([1.0, 2.0], [3.0])], combine_nested("x")),
    "no_coordinate_of_one_length": Case(
        [xr.Dataset({"v": ("x", [k])}) for k in (1.0, 3.0)], combine_nested("x"), {}, "to join them is not known"
    ),
    "empty": Case([make_line(np.zeros(0), np.zeros(0)), make_line([2.0], [1.0])], combine_nested("x"), ALONG_X),
    "variable_without_the_dimension": Case(
        [make_line([k], [k]).assign(w=("y", [1.0, 2.0])) for k in (0.0, 1.0)], combine_nested("x", **ALIKE), ALONG_X
    ),
    "variable_without_the_dimension_differs": Case(
        [make_line([k], [k]).assign(w=("y", [k, 2.0])) for k in (0.0, 1.0)],
        combine_nested("x"),
        ALONG_X,
        "different bytes of 'w'",
    ),
    "scalar_coordinate_differs": Case(
        [make_line([k], [k]).assign_coords(m=k) for k in (0, 1)],
        combine_nested("x"),
        ALONG_X,
        "different values of 'm'",
    ),
    "scalar_coordinate_becomes_dimension": Case(
        [make_line([k, 1], [0, 1]).assign_coords(m=k) for k in (0, 1)], combine_nested("m"), {"dim": "m"}
    ),
    # by coordinates
    "order": Case([WHOLE.isel(dim2=slice(4, 9)), WHOLE.isel(dim2=slice(4))], combine_by_coords(**ALIKE)),
    "bystander_of_text": Case([make_plane(["a", "c", "b"], x) for x in ([1, 2, 3], [4, 5, 6, 7])], combine_by_coords()),
    "variables_apart": Case(
        [make_line([0.0], [0]), make_line([0.0], [0]).rename(v="w"), make_line([1.0], [1])],
        combine_by_coords(**OUTER),
        OUTER,
    ),
    "variables_of_one_grid": Case(
        [make_line([1.0, 2], [0, 1]), make_line([3.0, 4], [0, 1]).rename(v="w")], combine_by_coords()
    ),
    "scalars": Case([xr.Dataset({"x": k}) for k in (0, 1)], combine_by_coords(), {}, "to join them is not known"),
    "interleaved": Case(
        [make_line([0.0, 1, 2], [0, 1, 5]), make_line([3.0, 4], [2, 3])],
        combine_by_coords(),
        {},
        "have no common order",
    ),
    "one_descends": Case(
        [make_line([1.0, 0], [1, 0]), make_line([2.0, 3], [2, 3])], combine_by_coords(), {}, "have no common order"
    ),
    "all_descend_but_one_has_one_value": Case(
        [make_line([0.0], [0]), make_line([2.0, 1], [2, 1])], combine_by_coords()
    ),
    "all_descend": Case([make_line([1.0, 0], [1, 0]), make_line([3.0, 2], [3, 2])], combine_by_coords()),
    "grid_lacks_a_set": Case(
        [make_point(1, 0, 0), make_point(2, 1, 0), make_point(3, 0, 1)], combine_by_coords(**OUTER), OUTER
    ),
    "grid_of_times_lacks_a_set": Case(
        [make_point(k * 864e11, y, x).astype("M8[ns]") for k, (y, x) in enumerate(((0, 0), (1, 0), (0, 1)))],
        combine_by_coords(**OUTER),
        OUTER,
    ),
    "grid_must_be_whole": Case(
        [make_point(1, 0, 0), make_point(2, 1, 0), make_point(3, 0, 1)],
        combine_by_coords(join="exact", fill_value=None),
        {},
        "do not form a grid",
    ),
    "same_place": Case(
        [make_point(1, 0, 0), make_point(2, 0, 0)], combine_by_coords(), {}, "the same values of all coordinates"
    ),
    "overlap": Case(
        [make_line([1.0, 2], [0, 1]), make_line([3.0, 4], [1, 2])], combine_by_coords(), {}, "overlap='first'"
    ),
    "three_dimensions": Case(
        [make_point(j + k, j, 0).expand_dims(z=[k]) for k in (0, 1) for j in (0, 1, 2)], combine_by_coords()
    ),
    "auxiliary_coordinate": Case(
        [make_plane([0, 1], [k]).assign_coords(lat=(("x", "y"), [[k, 1]])) for k in (0, 1)], combine_by_coords()
    ),
    # join and missing variables
    "exact": Case(
        [make_plane([0, 1], [0]), make_plane([1, 2], [1])],
        combine_nested("x", join="exact"),
        ALONG_X,
        "different values of 'y'",
    ),
    "outer": Case(
        [make_plane([0, 1], [0]), make_plane([1, 2], [1])], combine_nested("x", **OUTER), {**ALONG_X, **OUTER}
    ),
    "join_inner_by_outer_and_sel": Case(
        [make_plane([0, 1], [0]), make_plane([1, 2], [1])],
        combine_nested("x", join="inner"),
        {**ALONG_X, **OUTER, "sel": {"y": slice(1, 1)}},
    ),
    "join_override_by_tolerance": Case(
        [make_plane([0, 1.0], [0]), make_plane([0, 1.0000001], [1])],
        combine_nested("x", join="override"),
        {**ALONG_X, "tolerance": 1e-5},
    ),
    "compat_override_by_same": Case(
        [make_line([1.0], [0]).assign(a=1.0), make_line([1.0], [0]).rename(v="w").assign(a=2.0)],
        combine_by_coords(compat="override"),
        {"same": ["a"]},
    ),
    "compat_no_conflicts": Case(
        [make_line([1.0], [0]).assign(a=1.0), make_line([1.0], [0]).rename(v="w").assign(a=1.0)],
        combine_by_coords(compat="no_conflicts"),
    ),
    "missing": Case(
        [make_line([1.0], [0], w=[1.0]), make_line([2.0], [1])], combine_by_coords(), {}, "has no variable 'w'"
    ),
    "missing_outer": Case([make_line([1.0], [0], w=[1.0]), make_line([2.0], [1])], combine_by_coords(**OUTER), OUTER),
    "missing_first": Case([make_line([2.0], [0]), make_line([1.0], [1], w=[1.0])], combine_by_coords(**OUTER), OUTER),
    "missing_integers": Case(
        [make_line([1.0], [0], w=[1]), make_line([2.0], [1])], combine_by_coords(**OUTER), OUTER, "Give it a _FillValue"
    ),
    "missing_scalar": Case([make_line([2.0], [0]).assign(s=3.0), make_line([1.0], [1])], combine_by_coords()),
    # types and attributes
    "text": Case([make_line([1.0], [0], n=["ab"]), make_line([2.0], [1], n=["abcdef"])], combine_by_coords()),
    "texts_of_characters": Case(
        [make_line([1.0], [0], n=np.array(["ab"], "S2")), make_line([2.0], [1], n=np.array(["cde"], "S3"))],
        combine_by_coords(),
    ),
    "booleans": Case([make_line([True], [0]), make_line([False], [1])], combine_by_coords()),
    "integers_and_floats": Case([make_line(np.array([1], "i4"), [0]), make_line([2.5], [1])], combine_by_coords()),
    "integers_of_sizes": Case(
        [make_line(np.array([1], "i1"), [0]), make_line(np.array([2**40]), [1])], combine_by_coords()
    ),
    "signed_and_unsigned": Case(
        [make_line(np.array([-1]), [0]), make_line(np.array([2], "u8"), [1])], combine_by_coords()
    ),
    "floats_of_sizes": Case([make_line(np.array([1], "f4"), [0]), make_line([0.1], [1])], combine_by_coords()),
    "coordinates_of_types": Case([make_line([1.0], np.array([0], "i4")), make_line([2.0], [1.5])], combine_by_coords()),
    "times": Case(
        [make_line(np.array([text], "M8[ns]"), [k]) for k, text in enumerate(("2000-01-01", "2001-01-01T03:30"))],
        combine_by_coords(),
    ),
    "attributes": Case(
        [make_line([k], [k]).assign_attrs(t=k) for k in (0, 1)], combine_by_coords(combine_attrs="override")
    ),
    "units": Case(
        [make_line([k], [k]).assign(v=("x", [k], {"units": u})) for k, u in enumerate(("m", "km"))],
        combine_by_coords(combine_attrs="override"),
        {},
        "attribute units 'm'",
    ),
    "dimensions_in_another_order": Case(
        [make_plane([0, 1], [0]), make_plane([0, 1], [1]).transpose()], combine_by_coords(), {}, "the dimensions"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_combined_files_equal_those_of_xarray_or_are_refused(case: str, tmp_path: Path) -> None:
    sets, combine, arguments, refused = CASES[case]

    def write_all(some: Any) -> Any:
        if isinstance(some, list):
            return [write_all(each) for each in some]
        path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.nc")
        some.to_netcdf(path, engine="h5netcdf")
        return path

    def read(some: Any) -> Any:
        return list(map(read, some)) if isinstance(some, list) else xr.open_dataset(some, engine="h5netcdf")

    paths = write_all(sets)
    if refused:
        with pytest.raises(ManifestError, match=refused):
            refshard_fs.open(paths, **(arguments or {}))
        return
    found = xr.open_dataset(refshard_fs.open(paths, **(arguments or {})), engine="refshard").load()
    xr.testing.assert_equal(found, combine(read(paths)).load())

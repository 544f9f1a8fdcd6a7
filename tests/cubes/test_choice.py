"""Parse the arguments of a selection, and their JSON form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refshard_fs.cubes.choice import Choice
from refshard_fs.errors import ManifestError


def test_choice_read_from_its_json_form_is_equal() -> None:
    choice = Choice.of("a", ["b"], {"b": "c"}, {"": {"title": None}}, {"x": slice(None, -1)})
    spelled = {
        "drop": ["a"],
        "keep": ["b"],
        "rename": {"b": "c"},
        "attrs": {"": {"title": None}},
        "isel": {"x": [None, -1]},
    }
    assert choice.to_json() == spelled
    assert Choice.read(spelled) == choice
    assert Choice.of().to_json() == {}


def test_integer_is_a_slice_of_one_and_a_squeezed_dimension() -> None:
    choice = Choice.of(isel={"x": -1, "y": 3}, squeeze="z", assign={"t": np.array(["2024-01-01"], "M8[ns]")})
    assert choice.isel == {"x": (-1, None), "y": (3, 4)}
    assert choice.squeeze == ("x", "y", "z")
    days = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}
    assert choice.to_json()["assign"] == {
        "t": {"dims": ["t"], "dtype": "<i8", "shape": [1], "data": "gACSZQAAAAA=", "attrs": days}
    }
    assert Choice.read(choice.to_json()) == choice


@pytest.mark.parametrize(
    "given",
    [{"dtype": "|O"}, {"dtype": "nope"}, {"shape": [2]}, {"shape": [-1]}, {"data": "?"}, {"dims": []}],
)
def test_invalid_assigned_arrays_are_errors(given: Any) -> None:
    whole = {"dims": ["x"], "dtype": "|u1", "shape": [1], "data": "AA==", **given}
    with pytest.raises(ManifestError, match="assign="):
        Choice.read({"assign": {"a": whole}}).make_source(2)


@pytest.mark.parametrize("given", [{"kept": []}, {"drop": "a"}, {"isel": {"x": [0, 1, 2]}}, [], None])
def test_invalid_json_forms_of_a_choice_are_errors(given: Any) -> None:
    with pytest.raises(ValueError, match="select="):
        Choice.read(given)


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("keep", 5, "keep=5: expected a name, or a list of names"),
        ("squeeze", 5, "squeeze=5: expected a name, or a list of names"),
        ("rename", ["a"], r"rename=\['a'\]: expected a mapping, such as {'air': 't2m'}"),
        ("attrs", ["a"], r"attrs=\['a'\]: expected a mapping"),
        ("isel", [1], r"isel=\[1\]: expected a mapping"),
        ("assign", [1], r"assign=\[1\]: expected a mapping"),
    ],
)
def test_arguments_of_another_type_are_errors(argument: str, value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        Choice.of(**{argument: value})


def test_assigned_tuple_of_two_numbers_is_its_values() -> None:
    two = Choice.of(assign={"m": (1, 2)}).assign["m"]
    assert (two.dims, two.shape) == (("m",), (2,))


@pytest.mark.parametrize("bounds", [slice(0, 1.5), slice("a", None)])
def test_bounds_of_another_type_are_errors_with_the_dimension(bounds: Any) -> None:
    with pytest.raises(TypeError, match=r"^isel={'x': slice.*: expected integers as the bounds of a slice"):
        Choice.of(isel={"x": bounds})


def test_assigned_lists_of_different_lengths_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"assign={'w': .*\(dims, values, attrs\)"):
        Choice.of(assign={"w": ["lat", [1, 2], {}]})


def test_assigned_attributes_of_another_type_are_errors() -> None:
    with pytest.raises(TypeError, match=r"^assign={'m': \.\.\.}: expected attributes as a mapping, got 5"):
        Choice.of(assign={"m": ("x", [1, 2], 5)})


def test_attributes_that_json_cannot_express_are_errors() -> None:
    with pytest.raises(TypeError, match=r"^attrs={'a': \.\.\.}: expected texts, numbers.*, got b=<object"):
        Choice.of(attrs={"a": {"b": object()}})
    with pytest.raises(TypeError, match=r"^assign={'m': \.\.\.}: expected texts, numbers.*, got b=<object"):
        Choice.of(assign={"m": ("x", [1], {"b": object()})})


def test_attributes_of_numpy_types_become_json_values() -> None:
    """xarray shows attributes of NetCDF files in these types."""
    own = {"scale": np.float32(0.5), "range": np.array([1, 2], "i2"), "gone": None}
    choice = Choice.of(attrs={"a": own}, assign={"m": ("x", [1], own)})
    expected = {"scale": 0.5, "range": [1, 2], "gone": None}
    assert choice.to_json()["attrs"] == {"a": expected}
    assert choice.assign["m"].attrs == expected

"""A joined set has the values of all sets; an error names the set that cannot be joined."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.callbacks import Callback

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.cli import main
from refshard_fs.sets import document_template as taking
from refshard_fs.sets import sources
from refshard_fs.sets.opened_set import open_set
from tests.support.joined_sets import VERSIONS, make_array, make_day_set, read

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("version", VERSIONS)
def test_values_equal_the_concatenated_values_of_the_sets(version: int) -> None:
    parts = [make_day_set(0, 4, version), make_day_set(4, 2, version), make_day_set(6, 3, version)]
    read_parts = [read(part) for part in parts]
    both = read(refshard_fs.concat(parts, dim="time"))
    assert both["air"].shape == (9, 5)
    for name in ("air", "time"):
        np.testing.assert_array_equal(both[name], np.concatenate([part[name] for part in read_parts]))
    np.testing.assert_array_equal(both["x"], read_parts[0]["x"])


@pytest.mark.parametrize("version", VERSIONS)
def test_grid_of_sets_is_joined_along_two_dimensions(version: int) -> None:
    grid = [[make_day_set(t, 2, version, 2, x) for x in (0, 2, 4)] for t in (0, 2)]
    expected = np.concatenate([np.concatenate([read(s)["air"] for s in row], 1) for row in grid], 0)
    found = read(refshard_fs.concat(grid, dims=("time", "x")))
    np.testing.assert_array_equal(found["air"], expected)
    np.testing.assert_array_equal(found["x"], np.arange(6))
    np.testing.assert_array_equal(found["time"], np.arange(4))


def test_concatenation_equals_that_of_xarray() -> None:
    xr = pytest.importorskip("xarray")
    parts = [make_day_set(0, 2), make_day_set(2, 2)]

    def open_and_load(fo: Any) -> Any:
        return xr.open_zarr(RefShardFileSystem(fo).get_mapper(), consolidated=False, chunks=None)

    ours = open_and_load(refshard_fs.concat(parts, dim="time"))
    xr.testing.assert_identical(ours, xr.concat([open_and_load(p) for p in parts], "time", data_vars="minimal",
                                                coords="minimal", compat="equals", join="exact"))  # fmt: skip


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"compressor": {"id": "zlib", "level": 1}}, ["'air'", "compressor", "set 0", "set 1"]),
        ({"dtype": "<i4"}, ["'air'", "dtype", "'<f4'", "'<i4'"]),
        ({"order": "F"}, ["'air'", "order"]),
        ({"fill_value": 7}, ["'air'", "fill_value"]),
        ({"first": 1}, ["'x'", "values", "join='outer'", "tolerance="]),
        ({"width": 4}, ["'air'", "along 'x'", "5", "4"]),
    ],
)
def test_error_names_array_and_field_that_differ(other: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        refshard_fs.concat(
            [make_day_set(0, 4), make_day_set(4, 2, **other)], dim="time", same=["x"] if "width" in other else []
        )
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("member", "value"),
    [("filters", 5), ("compressor", "zlib"), ("fill_value", 2**40), ("fill_value", {}), ("fill_value", "x")],
)
def test_invalid_fill_value_is_an_error_but_invalid_codecs_stay(member: str, value: Any) -> None:
    parts = [make_day_set(start, 2) for start in (0, 2)]
    for part in parts:
        part["time/.zarray"] = json.dumps({**json.loads(part["time/.zarray"]), member: value})
    if member == "fill_value":
        with pytest.raises(ManifestError, match="'time' of set 0: its fill_value is"):
            refshard_fs.concat(parts, dim="time")
    else:
        joined = RefShardFileSystem(refshard_fs.concat(parts, dim="time"))
        assert json.loads(joined.cat_file("time/.zarray"))[member] == value
        assert joined.cat_file("time/1") == np.arange(2, 4, dtype="<i4").tobytes()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"air/.zattrs": '{"_ARRAY_DIMENSIONS": 5}'}, r"'air/.zarray' of set 1: expected names of its 2 dimensions"),
        ({"air/.zattrs": '{"_ARRAY_DIMENSIONS": ["time"]}'}, "expected names of its 2 dimensions"),
        ({"air/.zattrs": '{"_ARRAY_DIMENSIONS": ["time", 5]}'}, "expected names of its 2 dimensions"),
        ({"air/.zattrs": "[]"}, "'air/.zattrs' of set 1: expected a JSON object"),
        ({"time/0": "\ud800"}, "'time/0'.*surrogates"),
        ({"air/.zarray": None, "air/zarr.json": {"zarr_format": 3, "node_type": "array", "shape": [2, 5], "attributes":
          "K", "data_type": "float32", "chunk_key_encoding": {"name": "default"},
          "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}}}, "an object of attributes"),
    ],
)  # fmt: skip
def test_invalid_metadata_or_text_of_a_set_is_an_error(change: dict[str, Any], why: str) -> None:
    other = {key: value for key, value in (make_day_set(2, 2) | change).items() if value is not None}
    with pytest.raises(ManifestError, match=why):
        refshard_fs.concat([make_day_set(0, 2), other], dim="time")


def test_error_names_the_variable_that_a_set_lacks() -> None:
    other = {key: value for key, value in make_day_set(4, 2).items() if not key.startswith("air")}
    with pytest.raises(ManifestError, match="set 1 has no variable 'air'"):
        refshard_fs.concat([make_day_set(0, 4), other], dim="time")


def test_unknown_dimension_error_lists_the_dimensions() -> None:
    with pytest.raises(
        ManifestError, match=r"no variable of set 0.* has the dimension 'tiem': found time, x.*a pattern with fields"
    ):
        refshard_fs.concat([make_day_set(0, 4), make_day_set(0, 4)], dim="tiem")


def test_same_takes_variables_from_the_first_set() -> None:
    both = read(refshard_fs.concat([make_day_set(0, 4), make_day_set(4, 2, first=1)], dim="time", same="x"))
    np.testing.assert_array_equal(both["x"], np.arange(5))


@pytest.mark.parametrize("held", ["as a set", "as a filesystem"])
def test_concat_leaves_its_inputs_unchanged(held: str) -> None:
    parts = [make_day_set(start, 2, 3) for start in (0, 2)]
    for part in parts:
        part["zarr.json"] = {**json.loads(part["zarr.json"]), "consolidated_metadata": {"metadata": {}}}
    made = [RefShardFileSystem(part) if held == "as a filesystem" else part for part in parts]
    joined = refshard_fs.concat(made, dim="time")
    assert "consolidated_metadata" not in json.loads(RefShardFileSystem(joined).cat_file("zarr.json"))
    for part in made:
        fs = part if isinstance(part, RefShardFileSystem) else RefShardFileSystem(part)
        assert "consolidated_metadata" in json.loads(fs.cat_file("zarr.json"))


def test_disjoint_variables_are_merged() -> None:
    one, two = make_day_set(0, 2), make_array("wind", np.ones((2, 5), "<f4"), (2, 5), ["time", "x"])
    merged = refshard_fs.concat([one, two])
    assert merged.references["wind/0.0"] == two["wind/0.0"]
    assert merged.references["air/0.1"] == one["air/0.1"]


def test_outer_merge_keeps_unnamed_dimensions_apart() -> None:
    parts = [make_array(name, np.ones(shape, "<f4"), shape, []) for name, shape in (("one", (4,)), ("two", (5, 3)))]
    for part in parts:
        for key in [key for key in part if key.endswith(".zattrs")]:
            del part[key]
    merged = refshard_fs.concat(parts, join="outer")
    assert merged.references["one/0"] == parts[0]["one/0"]
    assert merged.references["two/0.0"] == parts[1]["two/0.0"]


@pytest.mark.parametrize("is_scalar", [False, True])
def test_differing_sets_need_a_dimension(is_scalar: bool) -> None:
    one, two = make_day_set(0, 2), make_day_set(2, 2)
    if is_scalar:
        for part, number in ((one, 1), (two, 2)):
            for key in [key for key in part if key.startswith("time")]:
                del part[key]
            part |= make_scalar("step", number)
    with pytest.raises(ManifestError, match=rf"name a dimension \(dim='{'step' if is_scalar else 'time'}'\)") as caught:
        refshard_fs.concat([one, two])
    assert "same=" not in str(caught.value)


def make_scalar(name: str, value: int) -> dict[str, Any]:
    meta = {"zarr_format": 2, "shape": [], "chunks": [], "dtype": "<i4", "order": "C"}
    return {
        f"{name}/.zarray": json.dumps({**meta, "fill_value": None, "filters": None, "compressor": None}),
        f"{name}/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": [], "units": "hours"}),
        f"{name}/0": "base64:" + base64.b64encode(np.array(value, "<i4").tobytes()).decode(),
    }


def test_units_that_differ_are_refused() -> None:
    other = make_day_set(4, 2)
    other["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": "hours since 2001-01-01"})
    with pytest.raises(ManifestError, match="'time' has the attribute units None in set 0"):
        refshard_fs.concat([make_day_set(0, 4), other], dim="time")


def make_times(start: int, units: str) -> dict[str, Any]:
    part = make_day_set(start, 2)
    part["time/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"], "units": units})
    return part


def test_times_in_other_units_are_converted() -> None:
    parts = [
        make_times(2, "days since 2001-01-01"),
        make_times(4, "days since 2001-01-03"),
        make_times(48, "hours since 2001-01-08"),
    ]
    parts[2]["time/0"] = np.array([24, 48], "<i4").tobytes()
    both = read(refshard_fs.concat(parts, dim="time"))
    np.testing.assert_array_equal(both["time"], [2, 3, 6, 7, 8, 9])


def test_error_of_inconvertible_times_says_what_to_do() -> None:
    parts = [make_times(2, "days since 2001-01-01"), make_times(4, "months since 2001-01-03")]
    with pytest.raises(ManifestError) as caught:
        refshard_fs.concat(parts, dim="time")
    for words in (
        "'days since 2001-01-01' in set 0",
        "'months since 2001-01-03' in set 1",
        "expected a unit from nanoseconds to days",
        "Leave one of these sets out",
    ):
        assert words in str(caught.value)


def test_missing_set_is_not_a_missing_key(tmp_path: Any) -> None:
    from refshard_fs import SourceNotReachable

    with pytest.raises(SourceNotReachable, match="no such object"):
        refshard_fs.concat([make_day_set(0, 2), str(tmp_path / "none.json")], dim="time")


def test_result_can_be_compared_and_pickled() -> None:
    one, two = (refshard_fs.concat([make_day_set(0, 4), make_day_set(4, 2)], dim="time") for _ in range(2))
    assert one == two == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(two)


@pytest.mark.parametrize("argument", ["chunks", "subchunks"])
@pytest.mark.parametrize("lengths", [{"time": 0}, {"air": {"time": 2}}])
def test_invalid_chunk_lengths_are_refused(argument: str, lengths: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{argument}=.*expected {{dimension: length}}"):
        refshard_fs.concat([make_day_set(0, 2)], "time", lazy=True, **{argument: lengths})


def test_command_joins_a_grid_of_sets(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [[make_day_set(t, 2, 2, 2, x) for x in (0, 2)] for t in (0, 2)]
    paths = []
    for part in [part for row in grid for part in row]:
        paths.append(str(tmp_path / f"{len(paths)}.json"))
        RefShardFileSystem(part).save(paths[-1], "json")
    command = ["concat", *paths, "-o", str(tmp_path / "all.json"), "--dims", "time,x"]
    for counts in ("2,3", "0,2", "4", "2,x"):
        assert main([*command, "--counts", counts]) == 2
        assert "with the product 4" in capsys.readouterr().err
    assert main([*command, "--counts", "2,2", "--option", 'allow=["s3://nothing/"]']) == 2
    assert "outside allow=" in capsys.readouterr().err
    assert main([*command, "--counts", "2,2"]) == 0
    expected = read(refshard_fs.concat(grid, dims=("time", "x")))
    np.testing.assert_array_equal(read(str(tmp_path / "all.json"))["air"], expected["air"])


class Counting(Callback):  # type: ignore[misc]  # fsspec is untyped
    """Keep the numbers that the callback gets."""


def test_callback_counts_sets_and_chunks(tmp_path: Any) -> None:
    sets = Counting()
    both = refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 2)], dim="time", callback=sets)
    assert (sets.size, sets.value) == (2, 2)
    chunks = Counting()
    both.save(str(tmp_path / "all.json"), callback=chunks)
    assert (chunks.size, chunks.value) == (6, 6)
    keys = Counting()
    refshard_fs.snapshot(str(tmp_path), callback=keys)
    assert keys.value == 1


@pytest.mark.parametrize("name", ["part.json", "part"])
@pytest.mark.case(id="P12")
def test_concat_respects_limits_of_remote_sets(http_server: Any, tmp_path: Any, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    part = {key: value for key, value in make_day_set(0, 2).items() if key.startswith((".z", "air/.z"))}
    part |= {f"air/0.{i}": [str(tmp_path / "secret"), 0, 6] for i in range(2)}
    url = http_server.put(name, json.dumps(part).encode())
    with pytest.raises(TargetNotAllowed, match="this machine's files"):
        refshard_fs.concat([url], "time")
    with pytest.raises(TargetNotAllowed, match="this machine's files"):
        refshard_fs.rebase(url, {"s3://a/": "s3://b/"})
    named = [str(tmp_path) + "/", http_server.url + "/"]
    assert len(refshard_fs.concat([url], "time", allow=named)) == len(part)
    assert len(refshard_fs.rebase(url, {str(tmp_path) + "/": "s3://b/"})) == len(part)


@pytest.mark.parametrize("way", ["documents", "files", "sets at hand"])
def test_similar_pinned_sets_are_parsed_once_and_keep_pins(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for start in range(0, 12, 2):
        air = np.full((2, 5), start, "<f4")
        refs = make_array("air", air, (1, 5), ["time", "x"])
        made.append(refshard_fs.snapshot({".zgroup": '{"zarr_format": 2}', **refs}))
        made[-1].save(str(tmp_path / f"{start}.json"))
    paths = [str(tmp_path / f"{start}.json") for start in range(0, 12, 2)]
    sets = {"files": paths, "documents": [json.loads(Path(path).read_text()) for path in paths]}.get(way, made)
    opened = []
    monkeypatch.setattr(sources, "open_set", lambda fo, options: opened.append(fo) or open_set(fo, options))
    counted = {"parse_references": 0}
    monkeypatch.setattr(taking, "parse_references", _count_calls(counted, "parse_references", taking.parse_references))
    found = refshard_fs.concat(sets, dim="time")
    assert sum(counted.values()) == (0 if way == "sets at hand" else 1)
    assert not opened
    pins = found.columns.pins
    assert pins is not None
    assert [pins.get_pin(i) for i in range(6)] == [
        m.columns.pins.get_pin(0) for m in made if m.columns.pins is not None
    ]
    values = zarr.open_array(RefShardFileSystem(found).get_mapper("air"), mode="r")[:, 0]
    assert values.tolist() == [start for start in range(0, 12, 2) for _ in range(2)]


def _count_calls(counted: dict[str, int], name: str, call: Any) -> Any:
    def count(*args: Any, **options: Any) -> Any:
        counted[name] += 1
        return call(*args, **options)

    return count


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("fill", [[0.0, 0.0], ["NaN", 1.5]])
def test_complex_numbers_are_compared_by_value(version: int, fill: list[Any]) -> None:
    time = make_array("time", np.arange(2, dtype="<i4"), (2,), ["time"], version=version)
    later = make_array("time", np.arange(2, 4, dtype="<i4"), (2,), ["time"], version=version)
    whole = np.array([1 + 2j, 3 + 4j, 5 + 6j], "<c8")
    one = make_array("z", whole, (3,), ["z_of"], version=version, inline=True, fill_value=fill)
    other = make_array("z", whole + 1, (3,), ["z_of"], version=version, inline=True, fill_value=fill)
    joined = refshard_fs.concat([{**time, **one}, {**later, **one}], "time")
    assert joined.references["z/0" if version == 2 else "z/c/0"] == whole.tobytes()
    with pytest.raises(ManifestError, match="different values of 'z'"):
        refshard_fs.concat([{**time, **one}, {**later, **other}], "time")


@pytest.mark.parametrize("overlap", ["error", "last"])
def test_sets_without_elements_are_joined_to_an_empty_set(tmp_path: Path, overlap: Any) -> None:
    names = []
    for number in range(2):
        empty = make_array("time", np.zeros(0, "<i4"), (1,), ["time"], inline=True)
        names.append(str(tmp_path / f"{number}.json"))
        Path(names[-1]).write_text(json.dumps({".zgroup": '{"zarr_format": 2}', **empty}))
    made = refshard_fs.concat(names, "time", overlap=overlap)
    assert json.loads(RefShardFileSystem(made).cat_file("time/.zarray"))["shape"] == [0]


def test_concat_accepts_other_key_spelling_and_missing_chunks(tmp_path: Path) -> None:
    """Files are shown with `.` and stores of zarr 3 with `/`; netCDF4 and h5netcdf write other fill values."""
    if 3 not in VERSIONS:
        pytest.skip("zarr 2 writes version 2 alone")
    stores = [str(tmp_path / f"{number}.zarr") for number in range(2)]
    for number, (store, separator) in enumerate(zip(stores, "./", strict=True)):
        group = zarr.open_group(store, mode="w", zarr_format=3)
        spelled = {"name": "default", "separator": separator}
        for name, values, dims in (
            ("time", np.arange(4) + 4 * number, ["time"]),
            ("x", np.arange(3), ["x"]),
            ("v", np.arange(12).reshape(4, 3) + 100 * number, ["time", "x"]),
            ("mask", np.array([0, 1, 2]), ["x"]),
        ):
            fill = 0 if number else -7
            options: Any = {"chunks": (2, 3)[: values.ndim], "chunk_key_encoding": spelled, "dimension_names": dims}
            options |= {"fill_value": fill if name == "mask" else 9, "dtype": values.dtype}
            group.create_array(name, shape=values.shape, **options)[...] = values
        group.create_array("crs", shape=(), dtype="i4")[...] = 0
        path = Path(store, "crs", "zarr.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "dimension_names": [] if number else None}))
    made = refshard_fs.concat(stores, "time")
    store = zarr.storage.FsspecStore(RefShardFileSystem(made, asynchronous=True), read_only=True, path="")
    group = zarr.open_group(store, mode="r")
    first = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(group["v"][:], np.concatenate([first, first + 100]))
    np.testing.assert_array_equal(group["mask"][:], [0, 1, 2])
    np.testing.assert_array_equal(group["time"][:], np.arange(8))


def test_fill_value_that_means_missing_in_version_2_is_named() -> None:
    """In version 2, xarray shows elements with the fill value as missing; in version 3, only with ``_FillValue``."""
    sets = [make_day_set(0, 4, 2), make_day_set(4, 4, 3)]
    with pytest.raises(
        ManifestError, match="attribute _FillValue 'AAAAAAAAAAA=' in set 0, and None in set 1.*lazy=True"
    ):
        refshard_fs.concat(sets, "time")


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ({"join": "inner"}, "join='inner': expected 'exact' or 'outer'"),
        ({"overlap": "both"}, "overlap='both': expected 'error' or 'first' or 'last'"),
        ({"on_error": "ignore"}, "on_error='ignore': expected 'raise' or 'skip' or 'hole'"),
        ({"grid": "odd"}, "grid='odd': expected 'regular' or 'rectilinear'"),
    ],
)
def test_unknown_argument_values_are_refused(lazy: bool, argument: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 2)], "time", lazy=lazy, **argument)


def test_error_for_arguments_of_xarray_names_those_of_concat() -> None:
    for name, ours in {
        "concat_dim": "dim=",
        "combine_attrs": "attrs=",
        "compat": "same=",
        "parallel": "executor=",
    }.items():
        with pytest.raises(TypeError, match=f"{name}=, as xarray.open_mfdataset has: .*{ours}"):
            refshard_fs.concat([make_day_set(0, 2), make_day_set(2, 2)], "time", **{name: "x"})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dim": "time", "coords": [1]}, TypeError, r"coords=\[1\]: expected values by dimension, such as {'member'"),
        ({"dim": ["time"]}, TypeError, r"dim=\['time'\]: expected the name of one dimension; dims= takes several"),
        ({"dim": "time", "tolerance": "0.1"}, TypeError, "tolerance='0.1': expected a number"),
        ({"dim": "time", "executor": 4}, TypeError, r"executor=4: expected an executor .* ThreadPoolExecutor\(4\)"),
        ({"dim": "time", "attrs": {"units": "K"}}, TypeError, r"attrs=\{'units': 'K'\}: expected \{variable: "),
        ({"dim": "time", "same": ["airr"]}, ManifestError, "same= names 'airr', which no set has: .* air, "),
        ({"dim": "time", "subchunks": {"tme": 1}}, ManifestError, "subchunks= names 'tme', .* dimensions are time, x"),
        ({"dim": "time", "lazy": True, "chunks": {"tme": 1}}, ManifestError, "chunks= names 'tme', which no set has"),
    ],
)
def test_error_of_concat_names_the_wrong_argument(
    tmp_path: Path, arguments: Any, error: type[Exception], words: str
) -> None:
    for day in (0, 2):
        RefShardFileSystem(make_day_set(day, 2)).save(str(tmp_path / f"{day}.json"))
    with pytest.raises(error, match=words):
        refshard_fs.concat(f"{tmp_path}/*.json", **arguments)

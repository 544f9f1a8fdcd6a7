"""The error for sets that cannot be joined names the files and the variable."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import refshard_fs
from refshard_fs import ManifestError
from tests.support.set_files import read_days, write_day_files

h5py = pytest.importorskip("h5py")

Change = Callable[[Any], None]


def write_days(path: Path, number: int, change: Change | None = None) -> str:
    """Write two days of a quantity, and an array that is equal in all files; then apply ``change`` to the file."""
    with h5py.File(path, "w", track_order=True) as file:
        time = file.create_dataset("time", data=np.array([2 * number, 2 * number + 1], "<i4"))
        time.attrs["units"] = "days since 2024-01-01"
        time.make_scale("time")
        x = file.create_dataset("x", data=np.arange(3, dtype="<f4"))
        x.make_scale("x")
        v = file.create_dataset("v", data=np.full((2, 3), number, "<f4"), chunks=(1, 3))
        v.attrs["units"] = "K"
        mask = file.create_dataset("mask", data=np.arange(3, dtype="<i2"))
        for array, dims in ((v, (time, x)), (mask, (x,))):
            for axis, scale in zip(array.dims, dims, strict=True):
                axis.attach_scale(scale)
        if change is not None:
            change(file)
    return str(path)


def rewrite(name: str, **kinds: Any) -> Change:
    """Return a change that rewrites a variable with another type, shape, chunks or codecs."""

    def change(file: Any) -> None:
        old, storage = file[name], dict(kinds)
        data = storage.pop("data", old[...])
        scales = [axis[0] for axis in old.dims if len(axis)] if storage.pop("scales", True) else []
        units = old.attrs.get("units")
        del file[name]
        new = file.create_dataset(name, data=data, **storage)
        if units is not None:
            new.attrs["units"] = units
        for axis, scale in zip(new.dims, scales, strict=False):
            axis.attach_scale(scale)

    return change


def attribute(name: str, attribute: str, value: Any) -> Change:
    return lambda file: file[name].attrs.__setitem__(attribute, value)


def remove(name: str) -> Change:
    return lambda file: file.__delitem__(name)


# By name: the change of the second file, arguments of `concat`, and words of the error besides the names of both files.
CASES: dict[str, tuple[Change, dict[str, Any], list[str]]] = {
    "a variable less": (remove("v"), {}, ["'v'"]),
    "units": (attribute("v", "units", "degC"), {}, ["'v'", "'K'", "'degC'"]),
    "units, lazily": (attribute("v", "units", "degC"), {"lazy": True}, ["'v'", "'K'", "'degC'"]),
    "type": (rewrite("v", dtype="<f8", chunks=(1, 3)), {}, ["'v'", "<f4", "<f8", "lazy=True"]),
    "type, lazily": (rewrite("v", data=np.full((2, 3), b"a"), chunks=(1, 3)), {"lazy": True}, ["'v'", "<f4", "|S1"]),
    "codecs": (rewrite("v", chunks=(1, 3), compression="gzip"), {}, ["'v'", "zlib", "None"]),
    "chunks": (rewrite("v", chunks=(1, 2)), {}, ["'v'", "[1, 3]", "[1, 2]"]),
    "scale": (attribute("v", "scale_factor", 0.5), {}, ["'v'", "scale_factor", "0.5", "None"]),
    "scale that is text, lazily": (attribute("v", "scale_factor", "x"), {"lazy": True}, ["'v'", "scale_factor"]),
    "calendar": (attribute("time", "calendar", "noleap"), {}, ["'time'", "'noleap'", "'standard'"]),
    "units of time": (attribute("time", "units", "months since 2024-01-01"), {}, ["'time'", "months", "days since"]),
    "another place": (lambda file: file["x"].__setitem__(2, 9), {}, ["'x'"]),
    "another mask": (lambda file: file["mask"].__setitem__(2, 9), {}, ["'mask'", "same="]),
    "another mask, lazily": (lambda file: file["mask"].__setitem__(2, 9), {"lazy": True}, ["'mask'", "same="]),
    "a time twice": (lambda file: file["time"].__setitem__(0, 1), {}, ["time = 2024-01-02"]),
    "no coordinate to sort by": (remove("time"), {"sort": True}, ["'time'"]),
    "no coordinate to fill in": (remove("time"), {"freq": "1D"}, ["'time'"]),
    "other dimensions": (rewrite("v", data=np.zeros((3, 2), "<f4"), scales=False), {}, ["'v'"]),
}


LATER = ("a time twice",)  # errors that only a file after another one can have


@pytest.mark.parametrize(("name", "odd"), [(name, odd) for name in CASES for odd in (1, 0) if odd or name not in LATER])
def test_error_of_files_that_do_not_fit_names_files_and_variable(tmp_path: Path, name: str, odd: int) -> None:
    change, options, said = CASES[name]
    files = [write_days(tmp_path / f"file{i}.nc", i, change if i == odd else None) for i in range(2)]
    with pytest.raises(ManifestError) as caught:
        refshard_fs.concat(files, "time", **options)
    text = str(caught.value)
    assert re.search(rf"file{odd}\.nc", text), text
    for words in said:
        assert words in text, text
    if not name.startswith(("no ", "part of")):
        assert all(f"file{i}.nc" in text for i in range(2)), text


def write_scalar(path: Path, number: int, change: Change | None = None) -> str:
    with h5py.File(path, "w") as file:
        file["time"], file["v"] = np.int32(number), np.full((2, 3), number, "f4")
        file["time"].attrs["units"] = "days since 2024-01-01"
        if change is not None:
            change(file)
    return str(path)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove("time"), "'time'.*set 0 .*file0.*does not exist in set 1 .*file1"),
        (remove("v"), "file1.* has no variable 'v', which .*file0.* has along 'time'"),
        (rewrite("v", data=np.zeros((2, 4), "f4")), "'v' has the length.*3 in set 0.*file0.*4 in set 1.*file1"),
        (rewrite("v", data=np.zeros(2, "f4")), "'v' has the dimensions.*file0.*file1.*: concat with drop='v' leaves"),
        (attribute("v", "units", "K"), "'v' has the attribute units None in .*file0.*'K' in .*file1"),
    ],
)
def test_error_in_files_of_one_time_names_the_file(tmp_path: Path, change: Change, said: str, *, lazy: bool) -> None:
    files = [write_scalar(tmp_path / f"file{i}.nc", i, change if i == 1 else None) for i in range(3)]
    with pytest.raises(ManifestError, match=f"(?s){said}"):
        refshard_fs.concat(files, "time", lazy=lazy)


def test_error_of_a_chunk_names_the_replaced_file(tmp_path: Path) -> None:
    files = [write_scalar(tmp_path / f"file{i}.nc", i) for i in range(3)]
    fs = refshard_fs.RefShardFileSystem(refshard_fs.concat(files, "time", lazy=True))
    write_scalar(tmp_path / "file2.nc", 2, rewrite("v", data=np.zeros((2, 4), "f4")))
    with pytest.raises(ManifestError, match=r"'v' of the set '.*file2\.nc'.* \[1, 2, 3\], found \[1, 2, 4\]"):
        fs.cat_file("v/2.0.0")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("units", [("hours", "minutes"), ("m", "km"), ("m", None), (None, "m")])
def test_coordinates_in_other_units_are_not_concatenated(tmp_path: Path, units: Any, lazy: bool) -> None:
    """Coordinates in `m` and `km`, or in `hours` and `minutes`, were once joined as if both had the first units."""

    def make_change(name: Any) -> Change:
        def change(file: Any) -> None:
            del file["time"].attrs["units"]
            if name is not None:
                file["time"].attrs["units"] = name

        return change

    files = [write_days(tmp_path / f"file{i}.nc", i, make_change(name)) for i, name in enumerate(units)]
    with pytest.raises(ManifestError, match="'time' has the attribute units .*file0.*file1"):
        refshard_fs.concat(files, "time", lazy=lazy)
    url = str(tmp_path / "cube.json")
    refshard_fs.concat(files[:1], "time", lazy=lazy).save(url)
    with pytest.raises(ManifestError, match="'time' has the attribute units"):
        refshard_fs.append(url, files[1], "time")


# Arguments.


class Guarded(LocalFileSystem):
    """The files of this machine, for users who pass the secret."""

    protocol = "guarded"
    cachable = False

    def __init__(self, secret: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        if secret != "word":
            raise PermissionError("no credentials")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("guarded://")))


@pytest.mark.parametrize("how", ["itself", "target_options", "storage_options"])
@pytest.mark.parametrize("what", ["list", "pattern", "filesystem"])
def test_source_options_apply_to_all_parts(tmp_path: Path, how: str, what: str) -> None:
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    urls = ["guarded://" + path for path in write_day_files(tmp_path, "references", 2)]
    options: dict[str, Any] = {"secret": "word"} if how == "itself" else {how: {"secret": "word"}}
    if what == "filesystem":
        fs = refshard_fs.RefShardFileSystem(urls[0], skip_instance_cache=True, **options)
        assert fs.exists("t/.zarray")
        assert pickle.loads(pickle.dumps(fs)).exists("t/.zarray")
        return
    sets = urls if what == "list" else f"guarded://{tmp_path}/*.json"
    assert read_days(refshard_fs.concat(sets, "time", **options)) == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lasy": True}, "did you mean lazy="),
        ({"remote_protokol": "s3"}, "did you mean remote_protocol="),
        ({"variables": ["a"]}, "concat has no argument variables="),
        ({"storage_options": {"anon": True}}, "concat has no argument anon="),
        ({"storage_options": "anon"}, "expected a mapping"),
    ],
)
def test_unknown_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    files = write_day_files(tmp_path, "references", 1)
    with pytest.raises(TypeError, match=said):
        refshard_fs.concat(files, "time", **wrong)
    with pytest.raises(TypeError, match=said.replace("concat", "refshard") if "lasy" not in wrong else "lasy="):
        refshard_fs.RefShardFileSystem(files[0], **wrong)
    with pytest.raises(TypeError, match="has no argument|expected a mapping"):
        refshard_fs.append(files[0], files[0], "time", **wrong)


def test_common_options_of_fsspec_filesystems_are_accepted(tmp_path: Path) -> None:
    (file,) = write_day_files(tmp_path, "references", 1)
    of_all = {"skip_instance_cache": True, "use_listings_cache": False, "listings_expiry_time": 1, "max_paths": 9}
    of_all |= {"asynchronous": False, "loop": None, "batch_size": 8}
    of_references = {"target_protocol": "file", "target_options": {}, "remote_protocol": "file", "remote_options": {}}
    of_references |= {
        "lazy": True,
        "auto_mkdir": True,
        "simple_templates": True,
        "template_overrides": None,
        "target": None,
    }
    fs = fsspec.filesystem("refshard", fo=file, **of_all, **of_references)
    assert fs.exists("t/.zarray")
    cached = fsspec.filesystem("simplecache", target_protocol="refshard", target_options={"fo": file, **of_all})
    assert cached.exists("t/.zarray")
    mapper = fsspec.get_mapper(
        f"refshard::{file}", refshard={"remote_protocol": "file", "lazy": True}, file={"auto_mkdir": False}
    )
    assert ".zgroup" in mapper

"""Files that differ from an earlier file only in the bytes of their chunks are not parsed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import refshard_fs
from refshard_fs.core.columns import ChunkTable, Part, Row, Texts
from refshard_fs.core.keys import ChunkGrid, ChunkKeyEncoding
from refshard_fs.core.model import Facts, Steps
from refshard_fs.references.reference_set import ReferenceSet
from refshard_fs.sets import scanning
from refshard_fs.sets.file_template import FileTemplates, FirstBytes
from tests.support.set_files import make_plain_file, read_days, read_first_values, write_day_files


@pytest.fixture
def opened_urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were opened to be parsed, in order."""
    found: list[str] = []
    really = scanning.open_source

    def open_source(url: str, *args: Any) -> Any:
        found.append(url)
        return really(url, *args)

    monkeypatch.setattr(scanning, "open_source", open_source)
    return found


@pytest.mark.parametrize("writer", ["h5py", "netCDF4", "scipy"])
def test_few_of_many_similar_files_are_opened(tmp_path: Path, writer: str, opened_urls: list[str]) -> None:
    files = write_day_files(tmp_path, writer, 40)
    cube = refshard_fs.concat(files, "time", lazy=True)
    assert len(opened_urls) <= 5
    assert read_days(cube) == list(range(40))
    assert read_first_values(cube, 40) == list(range(40))
    assert refshard_fs.concat(files[5:], "time").references["t/0.0"][0] == files[5]


def test_few_of_many_files_with_chunk_indexes_are_opened(tmp_path: Path, opened_urls: list[str]) -> None:
    for day in range(20):
        with h5py.File(tmp_path / f"{day}.h5", "w", track_order=True) as file:
            time = file.create_dataset("time", data=np.array([day], "<i4"), maxshape=(None,), chunks=(1,))
            time.make_scale("time")
            values = file.create_dataset("t", data=np.full((1, 4), day), maxshape=(None, 4), chunks=(1, 2))
            values.dims[0].attach_scale(time)
    cube = refshard_fs.concat(f"{tmp_path}/*.h5", "time", lazy=True)
    assert len(opened_urls) <= 5
    assert read_days(cube) == list(range(20))
    fs = refshard_fs.RefShardFileSystem(cube)
    assert [np.frombuffer(fs.cat_file(f"t/{day}.1"), "<i8").tolist() for day in range(20)] == [
        [day, day] for day in range(20)
    ]


def test_file_with_other_metadata_is_parsed_anew(tmp_path: Path) -> None:
    for day in range(20):
        data = make_plain_file(day)
        (tmp_path / f"{day}.nc").write_bytes(data if day != 19 else data.replace(b"2024-01-01", b"2024-01-03"))
    assert read_days(refshard_fs.concat(f"{tmp_path}/*.nc", "time", lazy=True)) == [*range(19), 21]


def test_equal_bytes_elsewhere_do_not_mix_values_of_files(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 3, (30, 2, 4)).astype("<i4")
    for day, (x, t) in enumerate(values):
        with h5py.File(tmp_path / f"{day}.h5", "w", track_order=True) as file:
            time = file.create_dataset("time", data=np.array([day], "<i4"))
            time.make_scale("time")
            for name, row in (("t", x), ("u", t)):
                made = file.create_dataset(name, data=row[None])
                made.dims[0].attach_scale(time)
    made = refshard_fs.concat(f"{tmp_path}/*.h5", "time")
    fs = refshard_fs.RefShardFileSystem(made)
    assert read_days(fs) == list(range(30))
    for number, name in enumerate("tu"):
        read = [np.frombuffer(fs.cat_file(f"{name}/{day}.0"), "<i4").tolist() for day in range(30)]
        assert read == values[:, number].tolist()


def test_coordinates_beyond_the_first_bytes_are_read_per_file(tmp_path: Path, opened_urls: list[str]) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    for day in range(20):
        with scipy_io.netcdf_file(tmp_path / f"{day}.nc", "w") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 40_000)
            file.createVariable("t", "f4", ("time", "x"))[:] = day
            time = file.createVariable("time", "i4", ("time",))
            time[:], time.units = [day], "days since 2024-01-01"
    cube = refshard_fs.concat(f"{tmp_path}/*.nc", "time")
    assert len(opened_urls) <= 5
    assert read_days(cube) == list(range(20))
    assert read_first_values(cube, 20) == list(range(20))


URL = "memory://file"


def make_first_bytes(data: bytes) -> FirstBytes:
    first = FirstBytes(URL, 1 << 10)
    steps = first.read()
    next(steps)
    with pytest.raises(StopIteration):
        steps.send((Facts(len(data)), data))
    return first


@pytest.mark.parametrize("depends", [False, True])
def test_template_is_not_used_if_chunk_bytes_matter(depends: bool) -> None:
    def look(first: FirstBytes) -> Steps[ReferenceSet]:
        yield from ()
        data = first.data
        grid = ChunkGrid.regular((4,), (4,), ChunkKeyEncoding("v2", "."))
        attributes = b'{"n": %d}' % data[8 if depends else 0]
        table = ChunkTable.from_parts(grid, [Part.from_rows([(0, Row(0, 8, 4))])])
        return ReferenceSet(Texts.of([first.url]), {"a": table}, {"a/.zattrs": attributes})

    templates = FileTemplates(look)
    one, other = make_first_bytes(bytes(12)), make_first_bytes(bytes(8) + b"abcd")
    with pytest.raises(StopIteration) as stop:
        next(look(one))
    templates.add(one, stop.value.value)
    found = templates.find(other)
    assert (found is None) == depends
    assert found is None or found[1] is False
    assert templates.find(make_first_bytes(b"\1" + bytes(11))) is None
    assert templates.find(make_first_bytes(bytes(13))) is None

"""Read the metadata of all arrays and groups in few requests, and without a listing of chunks."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardError, RefShardFileSystem
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.node_documents import DEEPEST
from tests.servers.http import RangeServer
from tests.support.arrays_in_memory import make_array, make_references

np = pytest.importorskip("numpy")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("h5netcdf")


@pytest.mark.parametrize(
    "damaged",
    ["{}", "[]", '{"zarr_format": 2, "shape": "x", "chunks": 5}', '{"zarr_format": 2, "shape": [-1], "chunks": [0]}'],
)
def test_damaged_metadata_is_shown_or_a_refshard_error(damaged: str) -> None:
    refs = make_references(a=make_array([3], ["x"]), bad=make_array([3], ["x"]), x=make_array([3], ["x"])) | {
        "bad/.zarray": damaged
    }
    words: list[dict[str, Any]] = [{"drop": "a"}, {"keep": "bad", "isel": {"x": slice(4, 6)}}, {"rename": {"bad": "b"}}]
    for each in words:
        with contextlib.suppress(RefShardError):
            RefShardFileSystem(refs).select(**each).find("")


def write_hierarchy(root: Path, zarr_format: int) -> None:
    """Write an array of 40 chunks in the group ``g/inner``, and an array in the root."""
    group = zarr.open_group(str(root), mode="w", zarr_format=zarr_format)
    group.create_group("g").create_group("inner").create_array("a", shape=(40,), chunks=(1,), dtype="i4")[:] = 7
    group.create_array("b", shape=(4,), chunks=(2,), dtype="i4")[:] = 1


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("prefix", ["", "g", "g/inner/a"])
def test_documents_of_a_directory_equal_those_in_its_contents(tmp_path: Path, zarr_format: int, prefix: str) -> None:
    write_hierarchy(tmp_path, zarr_format)
    source = RefShardFileSystem(str(tmp_path)).source
    documents = source.run("", partial(source.open().documents, prefix))
    members = source.run("", partial(KeySpace.contents, source.open(), prefix)).members
    assert {key: json.loads(data) for key, data in documents.items()} == {k: json.loads(d) for k, d in members.items()}


def test_consolidated_documents_take_no_further_request(tmp_path: Path, http_server: RangeServer) -> None:
    write_hierarchy(tmp_path, 3)
    with warnings.catch_warnings(action="ignore"):  # no specification has consolidated metadata of version 3
        zarr.consolidate_metadata(str(tmp_path))
    url = http_server.put("store/zarr.json", (tmp_path / "zarr.json").read_bytes()).rpartition("/")[0]
    source = RefShardFileSystem(url).source
    keyspace = source.open()
    http_server.log.clear()
    documents = source.run("", keyspace.documents)
    assert documents.keys() == {f"{path}zarr.json" for path in ("", "b/", "g/", "g/inner/", "g/inner/a/")}
    assert json.loads(documents["g/inner/a/zarr.json"])["shape"] == [40]
    assert not [request for request in http_server.requests() if "/g/" in request.path or "/b/" in request.path]


def test_groups_nested_too_deeply_are_an_error(tmp_path: Path) -> None:
    for level in range(DEEPEST + 1):
        folder = tmp_path.joinpath(*["g"] * level)
        folder.mkdir(exist_ok=True)
        (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    source = RefShardFileSystem(str(tmp_path)).source
    with pytest.raises(RefShardError, match=f"at most {DEEPEST} groups"):
        source.run("", source.open().documents)


# Images of OME-Zarr, whose attributes name the nodes below groups.


def write_plate(root: Path, zarr_format: Any) -> None:
    """Write a plate with two wells, whose images have two resolutions; the second image has a label."""

    def describe(group: Any, **attributes: Any) -> None:
        group.attrs.update(attributes if zarr_format == 2 else {"ome": attributes})

    scales = [{"datasets": [{"path": "0"}, {"path": "1"}]}]
    plate = zarr.open_group(str(root), mode="w", zarr_format=zarr_format)
    describe(plate, plate={"wells": [{"path": "A/1"}, {"path": "A/2"}]})
    for column in "12":
        well = plate.create_group(f"A/{column}")
        describe(well, well={"images": [{"path": "0"}]})
        groups = [well.create_group("0")]
        if column == "2":
            labels = groups[0].create_group("labels")
            describe(labels, labels=["cells"])
            groups.append(labels.create_group("cells"))
        for group in groups:
            describe(group, multiscales=scales)
            for level in "01":
                group.create_array(level, shape=(4,), chunks=(2,), dtype="i4")[:] = 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_named_nodes_equal_listed_nodes(tmp_path: Path, zarr_format: int) -> None:
    write_plate(tmp_path / "plate.zarr", zarr_format)
    with RangeServer(directory=tmp_path) as server:
        for path in ("", "/A/1", "/A/2/0", "/A/2/0/labels"):
            found = []
            for place in (str(tmp_path), server.url):
                source = RefShardFileSystem(f"{place}/plate.zarr{path}", skip_instance_cache=True).source
                found.append(source.run("", source.open().documents))
            assert found[0] == found[1]


def write_series(root: Path, zarr_format: Any, images: Sequence[str], *, has_ome: bool, has_series: bool) -> None:
    """Write a hierarchy as bioformats2raw does: the group OME names images beside it, or they have numbers."""

    def describe(group: Any, **attributes: Any) -> None:
        group.attrs.update(attributes if zarr_format == 2 else {"ome": attributes})

    top = zarr.open_group(str(root), mode="w", zarr_format=zarr_format)
    describe(top, **{"bioformats2raw.layout": 3})
    if has_ome:
        describe(top.create_group("OME"), **({"series": images} if has_series else {}))
    for path in images:
        image = top.create_group(path)
        describe(image, multiscales=[{"datasets": [{"path": "0"}]}])
        image.create_array("0", shape=(4,), chunks=(2,), dtype="i4")[:] = 1


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("images", "has_ome", "has_series"),
    [
        (["0", "b/1"], True, True),
        ([f"{n}" for n in range(12)], True, False),
        (["0"], True, False),
        (["0"], False, False),
    ],
)
def test_images_of_bioformats2raw_equal_listed_nodes(
    tmp_path: Path, zarr_format: int, images: list[str], has_ome: bool, has_series: bool
) -> None:
    """OME-Zarr: without series, images "MUST be stored in consecutively numbered groups starting from 0"."""
    write_series(tmp_path / "a.zarr", zarr_format, images, has_ome=has_ome, has_series=has_series)
    with RangeServer(directory=tmp_path) as server:
        found = []
        for place in (str(tmp_path), server.url):
            fs = RefShardFileSystem(f"{place}/a.zarr", skip_instance_cache=True)
            named = {name for name in fs.ls("", detail=False) if fs.isdir(name)}
            found.append((fs.source.run("", fs.source.open().documents), named))
        assert found[0][0] == found[1][0]
        assert (
            found[0][1]
            == found[1][1]
            == {image[0] if "/" in image else image for image in images} | ({"OME"} if has_ome else set())
        )


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plate of each version of zarr."""
    folder = tmp_path_factory.mktemp("plates")
    for zarr_format in (2, 3):
        write_plate(folder / str(zarr_format), zarr_format)
    return folder


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("path", ["/A/1/0", "/A/2/0"])
@pytest.mark.parametrize(
    "choice",
    [{"keep": ["0"]}, {"keep": ["/0"]}, {"keep": ["labels"]}, {"keep": ["/labels/cells/1"]}, {"drop": ["0"]}, {}],
)
def test_selected_resolutions_equal_those_of_consolidated_stores(
    plates: Path, tmp_path: Path, zarr_format: int, path: str, choice: dict[str, Any]
) -> None:
    shutil.copytree(plates / str(zarr_format), tmp_path / "plate.zarr")
    if "labels" in str(choice) and path == "/A/1/0":
        pytest.skip("the image has no labels")
    with RangeServer(directory=tmp_path) as server:
        places = [f"{place}/plate.zarr{path}" for place in (server.url, tmp_path)]
        found = [sorted(RefShardFileSystem(place).select(**choice).source.open().grids) for place in places]
        with warnings.catch_warnings(action="ignore"):
            zarr.consolidate_metadata(str(tmp_path / f"plate.zarr{path}"))
        source = RefShardFileSystem(places[1], skip_instance_cache=True)
        assert found[0] == found[1] == sorted(source.select(**choice).source.open().grids)


def test_unknown_name_is_an_error_with_all_resolutions(tmp_path: Path) -> None:
    write_plate(tmp_path / "plate.zarr", 3)
    with RangeServer(directory=tmp_path) as server, pytest.raises(RefShardError, match="its names are 0, 1$"):
        RefShardFileSystem(f"{server.url}/plate.zarr/A/1/0").select(keep=["2"])


@pytest.mark.parametrize(("zarr_format", "documents"), [(2, 2), (3, 1)])
def test_resolutions_left_out_take_no_request(tmp_path: Path, zarr_format: int, documents: int) -> None:
    write_plate(tmp_path / "plate.zarr", zarr_format)
    with RangeServer(directory=tmp_path) as server:
        RefShardFileSystem(f"{server.url}/plate.zarr/A/1/0", select=[{"keep": ["/0"]}]).source.open()
        below = [request.path for request in server.requests() if "/0/0/" in request.path or "/0/1/" in request.path]
        assert len(below) == documents
        assert not [path for path in below if "/0/1/" in path]

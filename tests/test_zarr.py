"""zarr 2 and zarr 3 read the same values through us, and get an error if bytes cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from refshard_fs import ManifestError, ReferenceNotReachable, RefShardFileSystem
from tests.support.reference_sets import CHUNKS, SHAPE, VALUES, ZARR_2, make_reference_set, open_group

zarr = pytest.importorskip("zarr")


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("where", ["http", "file", "memory"])
def test_groups_and_arrays_have_their_values(separator: str, where: str, http_server: Any, tmp_path: Path) -> None:
    if where == "http":
        refs, data = make_reference_set(f"{http_server.url}/x.bin", separator)
        http_server.put("/x.bin", data)
    elif where == "file":
        refs, data = make_reference_set(str(tmp_path / "x.bin"), separator)
        (tmp_path / "x.bin").write_bytes(data)
    else:
        refs, data = make_reference_set("memory://x.bin", separator)
        fsspec.filesystem("memory").pipe("/x.bin", data)
    group = open_group(RefShardFileSystem(fo=refs))
    np.testing.assert_array_equal(group["a"][...], VALUES)
    np.testing.assert_array_equal(group["g/b"][3:7, 1:5], VALUES[3:7, 1:5])
    assert dict(group.attrs) == {"title": "x"}
    assert "g" in group
    assert "nope" not in group


def test_failed_chunk_is_an_error_and_not_the_fill_value(http_server: Any) -> None:
    refs, data = make_reference_set(http_server.put("/x.bin", b""))
    http_server.put("/x.bin", data)
    del refs["a/0.0"]
    refs["a/3.1"] = [f"{http_server.url}/gone.bin", 0, 24]
    array = open_group(RefShardFileSystem(fo=refs))["a"]
    assert (array[:2, :3] == -1).all()
    np.testing.assert_array_equal(array[2:4], VALUES[2:4])
    for selection in (np.s_[6:8, 3:6], np.s_[...], np.s_[7, 5]):
        with pytest.raises(ReferenceNotReachable, match=r"a/3\.1.*gone\.bin"):
            array[selection]


@pytest.mark.parametrize("fault", [403, 404, 416, 500, "short_body", "wrong_content_range", "reset", "hang_up"])
@pytest.mark.case(id="P31")
def test_failure_of_a_server_is_an_error_and_not_fill_values(fault: Any, http_server: Any) -> None:
    refs, data = make_reference_set(http_server.put("/x.bin", b""))
    http_server.put("/x.bin", data)
    array = open_group(RefShardFileSystem(fo=refs, retries=1))["a"]
    http_server.fault(fault, "/x.bin")
    with pytest.raises(ReferenceNotReachable):
        array[...]


@pytest.mark.skipif(ZARR_2, reason="zarr 2 takes mappers, not URLs with a store of its own")
class TestZarr3:
    def test_chained_url_opens_the_set(self, http_server: Any) -> None:
        refs, data = make_reference_set("x.bin")
        http_server.put("/x.bin", data)
        url = http_server.put("/refs.json", json.dumps(refs).encode())
        group = zarr.open_group(f"refshard::{url}", mode="r")
        np.testing.assert_array_equal(group["a"][...], VALUES)
        assert sorted(dict(group.members())) == ["a", "g"]
        assert sorted(dict(group.members(max_depth=None))) == ["a", "g", "g/b"]

    def test_storage_options_open_the_set(self, tmp_path: Path) -> None:
        refs, data = make_reference_set("x.bin")
        (tmp_path / "x.bin").write_bytes(data)
        (tmp_path / "refs.json").write_text(json.dumps(refs))
        options = {"fo": str(tmp_path / "refs.json")}
        group = zarr.open_group("refshard://", mode="r", storage_options=options)
        np.testing.assert_array_equal(group["g"]["b"][...], VALUES)
        np.testing.assert_array_equal(zarr.open_array("refshard://a", mode="r", storage_options=options)[...], VALUES)

    def test_zarr_copies_read_at_most_the_head_of_a_manifest_again(self, http_server: Any) -> None:
        refs, data = make_reference_set("x.bin")
        http_server.put("/x.bin", data)
        url = http_server.put("/refs.json", json.dumps({**refs, "pad": "x" * 5000}).encode())
        fs = RefShardFileSystem(fo=url)
        fs.ls("")
        before = len([r for r in http_server.requests("/refs.json") if r.method == "GET"])
        np.testing.assert_array_equal(open_group(fs)["a"][...], VALUES)
        again = [r for r in http_server.requests("/refs.json") if r.method == "GET"][before:]
        assert sum(r.sent for r in again) <= 4096 + 500, "only the head may be looked at again"

    def test_v3_arrays_with_either_separator_are_read(self, tmp_path: Path) -> None:
        for separator in (".", "/"):
            store = tmp_path / f"v3{ord(separator)}.zarr"
            encoding = {"name": "default", "separator": separator}
            written = zarr.create_array(
                store, shape=SHAPE, chunks=CHUNKS, dtype="int32", chunk_key_encoding=encoding, zarr_format=3
            )
            written[...] = VALUES
            refs: dict[str, Any] = {}
            for path in store.rglob("*"):
                if path.is_file():
                    key = str(path.relative_to(store))
                    refs[key] = path.read_text() if key == "zarr.json" else [str(path)]
            fs = RefShardFileSystem(fo=refs)
            assert len(fs.references) == len(refs)
            from zarr.storage import FsspecStore

            array = zarr.open_array(FsspecStore.from_mapper(fs.get_mapper(""), read_only=True), mode="r")
            np.testing.assert_array_equal(array[...], VALUES)

    @pytest.mark.parametrize("target", ["sync", "async", "protocol"])
    def test_targets_by_instance_or_protocol_work_under_zarrs_loop(self, target: str, http_server: Any) -> None:
        refs, data = make_reference_set(http_server.put("/x.bin", b""))
        http_server.put("/x.bin", data)
        more: dict[str, Any] = {"remote_protocol": "http"}
        if target != "protocol":
            more = {"fs": fsspec.filesystem("http", asynchronous=target == "async", skip_instance_cache=True)}
        fs = RefShardFileSystem(fo=refs, **more)
        np.testing.assert_array_equal(open_group(fs)["a"][...], VALUES)
        if target != "async":
            assert fs.cat_file("a/0.0") == VALUES[:2, :3].tobytes()


@pytest.mark.parametrize("depth", [150, 400, 5000])
def test_metadata_that_are_nested_deeply_are_a_typed_error(depth: int) -> None:
    """Deep nesting must not become a RecursionError in zarr's recursive parsers."""
    refs, _ = make_reference_set("memory://x.bin", ".")
    dtype = '[["a",' * depth + '"|u1"' + "]]" * depth
    refs["a/.zarray"] = '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": DTYPE}'.replace("DTYPE", dtype)
    with pytest.raises(ManifestError, match="nested too deeply"):
        open_group(RefShardFileSystem(fo=refs))["a"]

"""Sources of every kind are read for a join: each once, all together."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.cli import main
from tests.support.joined_sets import VERSIONS, day, read

zarr = pytest.importorskip("zarr")


@pytest.mark.skipif(len(VERSIONS) == 1, reason="chunk manifests are zarr version 3")
def test_chunk_manifests_are_joined(tmp_path: Any) -> None:
    parts = [day(0, 2, 3), day(2, 2, 3)]
    for i, part in enumerate(parts):
        RefShardFileSystem(part).save(str(tmp_path / f"part{i}"), "chunk-manifest")
    both = refshard_fs.concat([str(tmp_path / "part0"), str(tmp_path / "part1")], dim="time")
    expected = read(refshard_fs.concat(parts, dim="time"))
    for name, values in read(both).items():
        np.testing.assert_array_equal(values, expected[name])


def test_sets_with_templates_and_other_keys_are_joined(tmp_path: Any) -> None:
    parts = [day(0, 2), day(2, 2), day(4, 2), day(6, 2)]
    expected = read(refshard_fs.concat(parts, dim="time"))
    url = parts[1]["air/0.0"][0]
    parts[1]["air/0.0"] = ["{{u}}", *parts[1]["air/0.0"][1:]]
    documents = [parts[0], {"version": 1, "templates": {"u": url}, "refs": parts[1]},
                 {"version": 1, "refs": dict(reversed(parts[2].items()))}, parts[3]]  # fmt: skip
    paths = []
    for i, document in enumerate(documents):
        paths.append(str(tmp_path / f"{i}.json"))
        RefShardFileSystem(document).save(paths[-1], "json")
        if i == 1:
            text = json.loads((tmp_path / "1.json").read_text())
            text["refs"]["air/0.0"] = parts[1]["air/0.0"]
            (tmp_path / "1.json").write_text(json.dumps({**text, "version": 1, "templates": {"u": url}}))
    for sets in (documents, paths):
        for name, values in read(refshard_fs.concat(sets, dim="time")).items():
            np.testing.assert_array_equal(values, expected[name])


def test_documents_are_read_once_each_and_together(http_server: Any) -> None:
    parts = [day(0, 2), day(2, 2), day(4, 2)]
    urls = []
    for i, part in enumerate(parts):
        if i % 2 == 0:
            part["time/0"] = np.arange(2 * i, 2 * i + 2, dtype="<i4").tobytes()
        inline = {key: value for key, value in part.items() if not key.startswith(("x/", "time/"))}
        urls.append(http_server.put(f"{i}.json", json.dumps(inline).encode()))
    refshard_fs.concat(urls, dim="time", allow="any")
    assert sorted(entry.path for entry in http_server.log.requests(method="GET")) == [f"/{i}.json" for i in range(3)]


def test_parquet_sets_and_paths_are_joined(tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    parts = []
    for i, kind in enumerate(["parquet", "json"]):
        path = str(tmp_path / f"part{i}.{kind}")
        RefShardFileSystem(day(2 * i, 2)).save(path, kind)
        parts.append(path)
    assert main(["concat", *parts, "-o", str(tmp_path / "all.json"), "--dim", "time"]) == 0
    found = read(str(tmp_path / "all.json"))
    np.testing.assert_array_equal(found["air"], read(refshard_fs.concat([day(0, 2), day(2, 2)], "time"))["air"])

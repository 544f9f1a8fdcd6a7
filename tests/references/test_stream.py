"""If a format cannot hold a value, saving the set raises an error with the key before it writes anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.parquet_sets import DATA, make_v2_array

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(DATA)
    return str(path)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("a/9", ["u", 1, 2], "'a/9' is a reference, and not to a chunk"),
        ("b/0.0", ["u", 1, 2], "'b/0.0' is a reference, and not to a chunk"),
        ("readme", "text", "'readme': expected metadata or a chunk"),
        ("b/.zattrs", ["u"], "'b/.zattrs' is a reference, and not to a chunk"),
        ("b/.zattrs", "no JSON", "'b/.zattrs' is not JSON"),
        ("b/.zattrs", "[1]", "'b/.zattrs': expected a JSON object"),
        ("a/1", [None, 1, 2], "'a/1' has no URL"),
        ("a/1", ["u", 2**63, 2], "'a/1' has the offset 9223372036854775808"),
        ("a/1", ["u", 2**62, 2**62], "'a/1' has the offset 4611686018427387904"),
    ],
)
def test_error_of_an_unsupported_parquet_value_names_its_key(
    key: str, value: Any, reason: str, tmp_path: Path, target: str
) -> None:
    fs = RefShardFileSystem({"a/.zarray": make_v2_array([3], [1]), "a/0": [target], key: value})
    path = tmp_path / "a.parq"
    with pytest.raises(ManifestError, match=reason):
        fs.save(str(path))
    assert not path.exists()
    RefShardFileSystem({"a/.zarray": make_v2_array([3], [1]), "a/2": [target]}).save(str(path))
    with pytest.raises(ManifestError, match=reason):
        fs.save(str(path), overwrite=True)
    assert "a/2" in RefShardFileSystem(str(path)).references


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_error_of_a_lone_surrogate_in_a_url_names_the_key(tmp_path: Path, format: Any) -> None:
    fs = RefShardFileSystem({"a/.zarray": make_v2_array([2], [1]), "a/1": ["memory://\ud800", 0, 1]})
    with pytest.raises(ManifestError, match=r"'a/1' has the URL .* UTF-8"):
        fs.save(str(tmp_path / "set.parq"), format=format)
    assert not (tmp_path / "set.parq").exists()


@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_lone_surrogate_in_a_path_is_refused_before_writing(tmp_path: Path, format: Any) -> None:
    """Parquet and chunk manifests refuse it; JSON holds it."""
    fs = RefShardFileSystem({"\ud800/.zarray": make_v2_array([2], [1]), "\ud800/1": ["memory://x", 0, 1]})
    for place in (str(tmp_path / "set"), "memory://half-a-pair"):
        with pytest.raises(ManifestError, match=r"'\\ud800/\.zarray' has a lone surrogate.*save the set as JSON"):
            fs.save(place, format=format)
    assert not (tmp_path / "set").exists()
    fs.save(str(tmp_path / "set.json"))
    assert dict(RefShardFileSystem(str(tmp_path / "set.json")).references) == dict(fs.references) | {
        "\ud800/.zarray": json.dumps(make_v2_array([2], [1]), separators=(",", ":"))
    }


def test_default_target_is_written_as_a_url(tmp_path: Path, target: str) -> None:
    fs = RefShardFileSystem({"a/.zarray": make_v2_array([3], [1]), "a/1": [None, 1, 2]}, target=target)
    fs.save(str(tmp_path / "a.parq"))
    assert RefShardFileSystem(str(tmp_path / "a.parq")).references["a/1"] == [target, 1, 2]

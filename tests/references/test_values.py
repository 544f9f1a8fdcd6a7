"""Reading a key decodes its value in the manifest to bytes, or raises an error."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from tests.support.json_values import TARGET, make_version_1


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target.bin"
    path.write_bytes(TARGET)
    return str(path)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("text", b"text"),
        ("", b""),
        ("a\0b", b"a\0b"),
        ("é ☃", "é ☃".encode()),
        ("base64:" + base64.b64encode(b"\xff\x00").decode(), b"\xff\x00"),
        ({"zarr_format": 2, "a": [1, "é"]}, rb'{"zarr_format":2,"a":[1,"\u00e9"]}'),
        (["{t}"], TARGET),
        (["{t}", 10, 5], TARGET[10:15]),
        (["{t}", 0, 0], b""),
        ([None], TARGET),
        ([None, 3, 4], TARGET[3:7]),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("held", ["dict", "file"])
def test_values_of_many_kinds_give_their_bytes(
    value: Any, data: bytes, version: int, held: str, target: str, tmp_path: Path
) -> None:
    if isinstance(value, list) and value[0] == "{t}":
        value = [target, *value[1:]]
    document: Any = {"k": value} if version == 0 else make_version_1({"k": value})
    if held == "file":
        path = tmp_path / "refs.json"
        path.write_text(json.dumps(document))
        document = path
    fs = RefShardFileSystem(fo=document, target=target)
    assert fs.cat_file("k") == data
    assert fs.info("k") == {"name": "k", "size": len(data), "type": "file"}


@pytest.mark.parametrize("others", [0, 200])
def test_base64_bytes_decode_like_base64_text(others: int) -> None:
    """kerchunk's references in memory have inlined values as bytes that begin with "base64:"."""
    refs: dict[str, Any] = {f"a/{i}": f"text {i}" for i in range(others)}
    fs = RefShardFileSystem(fo=refs | {"k": b"base64:aGVsbG8=", "bad": b"base64:\xff", "raw": b"Base64:"})
    assert fs.cat_file("k") == b"hello"
    assert fs.info("k")["size"] == 5
    assert fs.cat_file("raw") == b"Base64:"
    with pytest.raises(ManifestError, match=r"'bad'.*base64"):
        fs.cat_file("bad")


def test_damaged_inline_data_is_not_a_missing_key() -> None:
    fs = RefShardFileSystem(fo={"k": "base64:@@@"})
    with pytest.raises(ManifestError, match=r"'k'.*base64"):
        fs.cat_file("k")

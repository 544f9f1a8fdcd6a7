"""Replaced files and folders keep their modes, and a draft has at most the permissions of its file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.stores import drafts
from refshard_fs.stores.drafts import replace_directory, replace_file
from refshard_fs.stores.objects import Objects

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has rights and links of another kind"),
    pytest.mark.case(id="P18"),
]

ARRAY = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "fill_value": 0}
DOCUMENT = json.dumps({**ARRAY, "order": "C", "filters": None})
REFS = {"x/.zarray": DOCUMENT, "x/0": "base64:AAAAAA=="}
ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "uint8",
    "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "codecs": [{"name": "bytes"}],
    "chunk_key_encoding": {"name": "default"},
    "attributes": {},
}
GROUP_3 = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}'}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Any:
    old = os.umask(0o022)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "draft_mode"), [(0o600, 0o600), (0o640, 0o600), (None, 0o644)])
def test_draft_has_at_most_the_permissions_of_its_file(mode: int | None, draft_mode: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if mode is not None:
        path.touch(mode)
        path.chmod(mode)
    with replace_file(str(path)) as file:
        file.write(b"secret")
        (draft,) = tmp_path.glob("*.tmp")
        assert mode_of(draft) == draft_mode
    assert mode_of(path) == (mode or 0o644)


@pytest.mark.usefixtures("umask")
def test_draft_whose_group_cannot_be_set_denies_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o664)
    found = os.stat(path)
    monkeypatch.setattr(
        drafts, "_find_status_of_replaced", lambda path: os.stat_result([*found[:5], found.st_gid + 1, *found[6:]])
    )

    def refuse(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with replace_file(str(path)) as file:
        file.write(b"new")
    assert mode_of(path) == 0o604


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_replaced_set_keeps_the_permissions_of_its_folder(format: Any, tmp_path: Path) -> None:
    out = tmp_path / "set"
    document = {"zarr_format": 3, "node_type": "array", "shape": [1], "data_type": "uint8", "fill_value": 0}
    document |= {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "codecs": [{"name": "bytes"}],
    }
    document |= {"chunk_key_encoding": {"name": "default"}, "attributes": {}}
    refs = GROUP_3 | {"x/zarr.json": json.dumps(document), "x/c/0": ["https://h/x", 0, 1]}
    fs = RefShardFileSystem({"x/.zarray": DOCUMENT, "x/0": ["https://h/x", 0, 4]} if format == "parquet" else refs)
    fs.save(str(out), format=format)
    assert mode_of(out) == 0o755
    for mode in (0o700, 0o2770):  # in a folder with the second mode, new files get the folder's group
        out.chmod(mode)
        fs.save(str(out), format=format, overwrite=True)
        assert mode_of(out) == mode


def test_folder_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two steps, a process that is killed in between would leave nothing at the path."""
    for name in ("old", "draft", "probe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not drafts._exchange(str(tmp_path / "probe"), str(tmp_path / "draft")):
        pytest.skip("this file system cannot exchange directories")
    monkeypatch.delattr(os, "rename")
    replace_directory(str(tmp_path / "old"), str(tmp_path / "probe"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["draft", "draft", "old", "probe"]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("format", ["parquet", "chunk-manifest"])
def test_killed_save_does_not_block_the_next(
    format: Any, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a killed process has left are ignored, or replaced with ``overwrite``."""
    out = tmp_path / "set"
    if is_there:
        out.mkdir()
    fs = RefShardFileSystem({"x/.zarray": DOCUMENT, "x/0": ["https://h/x", 0, 4]})
    put, last = Objects.put, ".zmetadata" if format == "parquet" else "zarr.json"

    def stop(self: Objects, name: str, *given: Any, **options: Any) -> Any:
        if name == last:
            raise KeyboardInterrupt
        return put(self, name, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", stop)
        patch.setattr(Objects, "remove_tree", lambda self: None)  # a killed process does not clean up
        with pytest.raises(KeyboardInterrupt):
            fs.save(str(out), format=format)
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    fs.save(str(out), format=format, overwrite=is_there)
    assert RefShardFileSystem(str(out)).exists("x/0")

"""Objects are stored as local files."""

from __future__ import annotations

from pathlib import Path

import pytest

from refshard_fs.core.model import ABSENT
from refshard_fs.errors import ConflictError
from refshard_fs.stores.objects import Objects


def test_paths_and_file_urls_give_an_immediate_store(tmp_path: Path) -> None:
    for url in (str(tmp_path), f"file://{tmp_path}", f"local://{tmp_path}"):
        objects = Objects(url, {})
        assert objects.is_local
        assert objects.is_immediate
        assert objects.is_at(str(tmp_path))


def test_refused_put_leaves_no_draft(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path), {})
    objects.put("a/b", [b"first"])
    with pytest.raises(ConflictError):
        objects.put("a/b", [b"second"], ABSENT)
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == {"b": b"first"}


def test_url_outside_of_the_directory_has_no_name(tmp_path: Path) -> None:
    """A stranger's set may contain a URL that begins like the user's directory, but leads out of it."""
    objects = Objects(f"file://{tmp_path}/data", {})
    assert objects.name_of(f"file://{tmp_path}/data/a/b") == "a/b"
    assert objects.name_of(f"file://{tmp_path}/data/../secret") is None
    assert objects.name_of(f"file://{tmp_path}/database") is None


def test_error_of_a_put_over_a_directory_names_the_directory(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder is a directory: expected the path of a file"):
        Objects(str(tmp_path / "folder"), {}).put("", (b"x",))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_error_of_a_put_below_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match="file is a file: expected a directory to write in"):
        Objects(str(tmp_path / "file" / "sub"), {}).put("set.json", (b"x",))

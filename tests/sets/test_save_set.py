"""The suffix of a file's name chooses the format in which a set is saved."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.callbacks import DEFAULT_CALLBACK

from refshard_fs import ManifestError, RefShardFileSystem, concat
from refshard_fs.sets.save_set import save_set
from tests.servers.s3 import SeaweedServer
from tests.support.joined_sets import make_day_set


@pytest.fixture
def fs() -> RefShardFileSystem:
    return RefShardFileSystem({".zgroup": '{"zarr_format": 2}', "a/0": ["s3://b/x", 0, 4]})


def save(fs: RefShardFileSystem, url: str, **options: Any) -> str | None:
    return save_set(fs.source, fs.writer, url, options.get("format"), 100, False, DEFAULT_CALLBACK, {})


def test_suffix_chooses_the_format(fs: RefShardFileSystem, tmp_path: Path) -> None:
    save(fs, str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text())["refs"]["a/0"] == ["s3://b/x", 0, 4]
    save(RefShardFileSystem(make_day_set(0, 2, 2)), str(tmp_path / "a.parquet"))
    assert (tmp_path / "a.parquet" / ".zmetadata").exists()


def test_uncommitted_writes_are_saved(fs: RefShardFileSystem, tmp_path: Path) -> None:
    fs.pipe_file("a/1", b"new")
    save(fs, str(tmp_path / "a.json"))
    assert RefShardFileSystem(str(tmp_path / "a.json")).cat_file("a/1") == b"new"


def test_plain_set_is_not_saved_with_the_suffix_refshard(fs: RefShardFileSystem, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"expected a source that joins sets.*give another name, such as .*a\.json"):
        save(fs, str(tmp_path / "a.refshard"))


@pytest.mark.parametrize("kind", ["filesystem", "set", "cube"])
@pytest.mark.parametrize("anon", [False, True])
def test_error_of_missing_credentials_names_url_and_options(
    kind: str, anon: bool, s3_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_server.create_bucket("unwritable")
    options = {"client_kwargs": s3_server.storage_options["client_kwargs"], **({"anon": True} if anon else {})}
    days = [str(tmp_path / f"{day}.json") for day in (0, 2)]
    for day, file in zip((0, 2), days, strict=True):
        RefShardFileSystem(make_day_set(day, 2, 2)).save(file)
    saved: Any = RefShardFileSystem(days[0]) if kind == "filesystem" else concat(days, "time", lazy=kind == "cube")
    url = f"s3://unwritable/{uuid.uuid4().hex}.{'refshard' if kind == 'cube' else 'json'}"
    with pytest.raises(PermissionError, match=rf"^{url} cannot be written: .*such as key= and secret="):
        saved.save(url, **options)
    if kind == "cube":
        with pytest.raises(TypeError, match="did you mean overwrite="):
            saved.save(url, overwrit=True)


def test_save_under_an_nc_name_needs_format(fs: RefShardFileSystem, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.nc file"):
        save(fs, str(tmp_path / "a.nc"))
    assert save(fs, str(tmp_path / "a.nc"), format="json") is None

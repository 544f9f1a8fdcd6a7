"""Local writes follow no links of other users, and no links inside a hierarchy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import refshard_fs
from refshard_fs import RefShardFileSystem
from refshard_fs.stores.links import resolve_path_to_write

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has rights and links of another kind"),
    pytest.mark.case(id="P18"),
]


as_root = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="links of others are made by root")


ARRAY = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None, "fill_value": 0}


DOCUMENT = json.dumps({**ARRAY, "order": "C", "filters": None})


REFS = {"x/.zarray": DOCUMENT, "x/0": "base64:AAAAAA=="}


GROUP_3 = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}'}


def link_of_another(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, 12345, 12345)


WRITES: dict[str, Callable[[str], object]] = {
    "save": lambda out: RefShardFileSystem(REFS).save(out, overwrite=True),
    "parquet": lambda out: RefShardFileSystem(REFS).save(out, format="parquet", overwrite=True),
    "concat": lambda out: refshard_fs.concat([RefShardFileSystem(REFS)], dim="time").save(out),
    "commit": lambda out: RefShardFileSystem(out, mode="w").commit(),
    "get": lambda out: RefShardFileSystem(REFS).get("x/0", out),
    "picture": lambda out: RefShardFileSystem(REFS).visualize("x").save(out),
}


@as_root
@pytest.mark.parametrize("place", ["file", "dangling", "folder"])
def test_link_of_another_user_is_not_written_through(place: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    target, name = {"file": ("mine/x", ""), "dangling": ("mine/y", ""), "folder": ("mine", "/new")}[place]
    (tmp_path / "mine/x").write_bytes(precious := b'{"version": 1, "refs": {"precious": "x"}}')
    link_of_another(tmp_path / "link.svg", tmp_path / target)
    for write in WRITES.values():
        out = str(tmp_path / "link.svg") + (name and name + ".svg")
        with pytest.raises(OSError, match="link of another user|is a file"):
            write(out)
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "mine").iterdir()] == [("x", precious)]


def test_own_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real/link.json").symlink_to(tmp_path / "folder/../real/refs.json")
    RefShardFileSystem(REFS).save(str(tmp_path / "folder/link.json"))
    assert (tmp_path / "real/link.json").is_symlink()
    assert RefShardFileSystem(str(tmp_path / "real/refs.json")).cat("x/0") == bytes(4)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        resolve_path_to_write(str(tmp_path / "round"))


@pytest.fixture(params=[2, 3])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, str]:
    """Return a hierarchy with links to an array and to a chunk elsewhere; the place of these; and the chunk's key."""
    victim, store = tmp_path / "victim", tmp_path / "store"
    (victim / "c").mkdir(parents=True)
    (store / "y/c").mkdir(parents=True)
    array3 = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0}
    array3 |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "codecs": [{"name": "bytes"}]}
    array3 |= {"chunk_key_encoding": {"name": "default"}, "attributes": {}}
    name, document, chunk = (
        (".zarray", DOCUMENT, "0") if request.param == 2 else ("zarr.json", json.dumps(array3), "c/0")
    )
    root = (".zgroup", '{"zarr_format": 2}') if request.param == 2 else ("zarr.json", GROUP_3["zarr.json"])
    (store / root[0]).write_text(root[1])
    for folder in (victim, store / "y"):
        (folder / name).write_text(document)
    (victim / chunk).write_bytes(b"good")
    (victim / "precious").write_bytes(b"gold")
    (store / "x").symlink_to(victim)
    (store / "y" / chunk).symlink_to(victim / "precious")
    return store, victim, chunk


@pytest.mark.parametrize("what", ["put", "remove", "remove all", "document", "move"])
def test_links_in_a_hierarchy_are_not_written_through(what: str, linked: tuple[Path, Path, str]) -> None:
    store, victim, chunk = linked
    before = {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()}
    fs = RefShardFileSystem(str(store), mode="a")
    match what:
        case "put":
            fs.pipe_file(f"x/{chunk}", b"evil")
        case "remove":
            fs.rm(f"x/{chunk}")
        case "remove all":
            fs.rm("x", recursive=True)
        case "document":
            name = ".zarray" if chunk == "0" else "zarr.json"
            fs.pipe_file(f"x/{name}", before[victim / name] + b" ")
        case "move":
            fs.mv(f"y/{chunk}", f"x/{chunk}")
    with pytest.raises(OSError, match="symbolic link inside the hierarchy"):
        fs.commit()
    fs.discard()
    assert {p: p.read_bytes() for p in victim.rglob("*") if p.is_file()} == before


def test_chunk_link_is_replaced_by_a_file(linked: tuple[Path, Path, str]) -> None:
    store, victim, chunk = linked
    fs = RefShardFileSystem(str(store), mode="a")
    fs.pipe_file(f"y/{chunk}", b"news")
    fs.commit()
    assert (victim / "precious").read_bytes() == b"gold"
    assert not (store / "y" / chunk).is_symlink()
    assert RefShardFileSystem(str(store)).cat(f"y/{chunk}") == b"news"

"""Existing and new elements of a set that is appended to."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import refshard_fs
from refshard_fs import ManifestError
from refshard_fs.cli import main
from tests.support.day_sets import list_targets, make_days, read_times, write_refs

pytest.importorskip("zarr")


@pytest.mark.parametrize("lazy", [False, True])
def test_same_day_is_not_appended_twice(tmp_path: Path, lazy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 1)) for i in range(3)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=lazy).save(url)
    assert refshard_fs.append(url, names[2], "time") == 1
    before = Path(url).read_bytes()
    with pytest.raises(ManifestError, match="time = 2024-01-03 already"):
        refshard_fs.append(url, names[2], "time")
    assert refshard_fs.append(url, names[2], "time", on_duplicate="skip") == 0
    assert main(["append", url, names[2], "--dim", "time", "--on-duplicate", "skip"]) == 0
    assert "nothing new, left as it is" in capsys.readouterr().out
    assert main(["append", url, names[2], "--dim", "time"]) == 2
    assert Path(url).read_bytes() == before


def test_only_new_elements_are_appended(tmp_path: Path) -> None:
    url = str(tmp_path / "all.json")
    refshard_fs.concat([make_days(0, 3)], "time").save(url)
    assert refshard_fs.append(url, make_days(1, 4), "time", on_duplicate="skip") == 2
    assert read_times(url) == [0, 1, 2, 3, 4]
    assert list_targets(url) == [f"memory://{i}" for i in range(5)]


def test_last_days_are_replaced(tmp_path: Path) -> None:
    url = str(tmp_path / "all.json")
    refshard_fs.concat([make_days(0, 4)], "time").save(url)
    better = make_days(2, 2)
    better["t/0"] = ["memory://better", 0, 1]
    assert refshard_fs.append(url, better, "time", on_duplicate="replace") == 0
    assert read_times(url) == [0, 1, 2, 3]
    assert list_targets(url) == ["memory://0", "memory://1", "memory://better", "memory://3"]
    with pytest.raises(ManifestError, match="the beginning"):
        refshard_fs.append(url, make_days(0, 5), "time", on_duplicate="replace")


def test_big_endian_day_is_not_appended_twice(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(i, 1, order=">")) for i in range(3)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=True).save(url)
    assert refshard_fs.append(url, names[2], "time") == 1
    with pytest.raises(ManifestError, match="time = 2024-01-02 already"):
        refshard_fs.append(url, names[1], "time")


@pytest.mark.parametrize("lazy", [False, True])
def test_append_keeps_order_unless_any_order_is_set(tmp_path: Path, lazy: bool) -> None:
    days = [make_days(*days) for days in ((2, 2), (4, 2), (0, 2))]
    names = [write_refs(tmp_path, f"{i}.json", refs) for i, refs in enumerate(days)]
    url = str(tmp_path / "all.json")
    refshard_fs.concat(names[:2], "time", lazy=lazy).save(url)
    if not lazy:  # a document gets the set in its place
        with pytest.raises(ManifestError, match="would no longer be sorted"):
            refshard_fs.append(url, names[2], "time")
        with pytest.warns(UserWarning, match="would no longer be sorted"):
            assert refshard_fs.append(url, names[2], "time", on_error="skip") == 0
    assert refshard_fs.append(url, names[2], "time", any_order=True) == 2
    assert read_times(url) == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(("start", "count"), [(2, 1), (2, 4), (4, 1)])
def test_lazy_cube_replaces_only_whole_files(start: int, count: int, tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(2 * i, 2)) for i in range(3)]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names, "time", lazy=True).save(url)
    new = write_refs(tmp_path, "new.json", make_days(start, count))
    if start + count == 6:
        assert refshard_fs.append(url, new, "time", on_duplicate="replace") == 0
        return
    with pytest.raises(ManifestError, match=rf"{count} values of 'time', 2024-01-.* of some pieces.* anew: resume="):
        refshard_fs.append(url, new, "time", on_duplicate="replace")


@pytest.mark.parametrize("chunk", [2, 3, 4])
def test_replacing_file_may_have_other_chunks(chunk: int, tmp_path: Path) -> None:
    files = [write_refs(tmp_path, f"{i}.json", make_days(4 * i, 4, 2)) for i in range(3)]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(files, "time", lazy=True).save(url)
    new = write_refs(tmp_path, "new.json", make_days(4, 4, chunk))
    assert refshard_fs.append(url, new, on_duplicate="replace") == 0
    memory = fsspec.filesystem("memory")
    memory.pipe({"/4": bytes(range(10, 10 + chunk)), f"/{4 + chunk}": bytes(range(10 + chunk, 10 + 2 * chunk))})
    fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True)
    assert fs.cat_file("t/2")[:2] == bytes([10, 11])

"""Pieces that are added to the document of a cube."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import refshard_fs
from refshard_fs import ManifestError
from tests.support.day_sets import make_days, read_times, write_refs
from tests.support.growing_sets import write_day, write_part, write_target
from tests.support.joined_sets import make_day_set, read

pytest.importorskip("zarr")


def test_append_adds_a_line_to_a_document(tmp_path: Path) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(0, 2), make_day_set(2, 2)])
    before = Path(url).read_text().splitlines()
    refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 2), 2), "time")
    after = Path(url).read_text().splitlines()
    assert [line.rstrip(",") for line in after[: len(before) - 1]] == [line.rstrip(",") for line in before[:-1]]
    assert after[-2].startswith('["part2.json",2,"base64:')
    assert len(after) == len(before) + 1


def test_append_with_replace_replaces_the_last_set(tmp_path: Path) -> None:
    names = [write_refs(tmp_path, f"{i}.json", make_days(2 * i, 2)) for i in range(3)]
    url = str(tmp_path / "all.refshard")
    refshard_fs.concat(names, "time", lazy=True).save(url)
    better = make_days(4, 3)
    better["t/0"] = ["memory://better", 0, 1]
    new = write_refs(tmp_path, "better.json", better)
    assert refshard_fs.append(url, new, "time", on_duplicate="replace") == 1
    assert read_times(url) == list(range(7))
    fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True)
    assert [fs.resolve(f"t/{i}")[0] for i in (3, 4, 5)] == ["memory://3", "memory://better", "memory://5"]
    before = Path(url).read_bytes()
    part = write_refs(tmp_path, "part0.json", make_days(0, 7))
    with pytest.raises(ManifestError, match="would replace the beginning"):
        refshard_fs.append(url, part, "time", on_duplicate="replace")
    assert Path(url).read_bytes() == before


def test_append_with_replace_replaces_pieces_in_place(tmp_path: Path) -> None:
    target = str(tmp_path / "cube.refshard")
    paths = [write_day(tmp_path, n, n) for n in range(4)]
    refshard_fs.open(paths).save(target)
    Path(paths[1]).unlink()
    (tmp_path / "mended").mkdir()
    assert refshard_fs.append(target, write_day(tmp_path / "mended", 1, 7.0), on_duplicate="replace") == 0
    assert refshard_fs.append(target, write_day(tmp_path, 3, 9.0), on_duplicate="replace") == 0
    assert xr.open_dataset(target, engine="refshard")["t"].values.tolist() == [0, 7, 2, 9]
    with pytest.raises(ManifestError, match="would replace the beginning of"):
        refshard_fs.append(target, paths[0], on_duplicate="replace")


def test_append_to_a_document_that_ends_within_a_chunk_works(tmp_path: Path) -> None:
    url = write_target(tmp_path, "lazy", [make_day_set(0, 3)])
    assert refshard_fs.append(url, write_part(tmp_path, make_day_set(4, 3), 9), "time") == 3
    assert refshard_fs.append(url, write_part(tmp_path, make_day_set(7, 2), 10), "time") == 2
    expected = [read(make_day_set(first, count))["air"] for first, count in ((0, 3), (4, 3), (7, 2))]
    np.testing.assert_array_equal(read(url)["air"], np.concatenate(expected))

"""Checks for every format of files of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import RefShardError
from refshard_fs.cli import main
from tests.support.shards_in_memory import ROOT, Files


def check_commands(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], array: str) -> Path:
    """Run ``info``, ``map``, ``check`` and ``convert`` on a file; return the path of the converted reference set."""
    refs = tmp_path / "converted.json"
    for arguments in (
        ["info", path],
        ["map", path, "-o", tmp_path / "map.svg"],
        ["check", path],
        ["convert", path, refs],
    ):
        assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr()
        printed = capsys.readouterr().out
        assert array in printed or arguments[0] != "info"
    return refs


def count_rounds_to_open(path: Path) -> int:
    """Return the number of rounds of requests in which a file is opened; a round waits for the answers of the last one.

    The rounds are counted without a server, so that the number does not depend on the machine's load.
    """
    files = Files.of(path)
    files.open()
    return files.rounds


def read_all_bytes(data: bytes, most: int = 1 << 20) -> dict[str, bytes | None]:
    """Return the bytes of all chunks of a file in memory, by key; ``b"an error"`` for a chunk that cannot be read.

    Assert that no chunk has more than ``most`` bytes.
    """
    files = Files({ROOT: data})
    keyspace = files.open()
    found: dict[str, bytes | None] = {}
    for path, grid in keyspace.grids.items():
        for number in range(min(grid.size, 50)):
            key = f"{path}/{grid.tail(number)}"
            try:
                entry = files.run(keyspace.lookup(key))
                assert entry is None or (entry.size or 0) <= most, "a chunk is larger than the file can hold"
                found[key] = None if entry is None else files.bytes(entry)
            except (RefShardError, ValueError):  # the engine adds the key to these errors
                found[key] = b"an error"
    return found


def check_damage(data: bytes, seed: int, header: int | None = None, times: int = 200) -> None:
    """Truncate a file, and flip bits in its first ``header`` bytes: assert that only errors of this package are raised.

    Chunks of a truncated file must have the right bytes or raise an error.
    """
    rng = np.random.default_rng(seed)
    whole = read_all_bytes(data)
    for cut in sorted({*rng.integers(0, len(data), times).tolist(), len(data) - 5, len(data) - 1000}):
        try:
            found = read_all_bytes(data[: max(cut, 0)])
        except RefShardError as e:
            assert str(e)
            continue
        assert all(value in (whole[key], b"an error") for key, value in found.items())
    for bit in rng.integers(0, 8 * min(header or len(data), len(data)), times).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read_all_bytes(bytes(flipped))
        except RefShardError as e:
            assert str(e)


def check_same(got: Any, want: Any) -> None:
    """Assert that two datasets of xarray have the same variables, dimensions, attributes and values."""
    assert list(map(str, got.dims)) == list(map(str, want.dims)) or set(got.dims) == set(want.dims)
    assert dict(got.sizes) == dict(want.sizes)
    assert set(got.variables) == set(want.variables)
    assert set(got.coords) == set(want.coords)
    check_same_attributes(got.attrs, want.attrs)
    for name, variable in want.variables.items():
        found = got.variables[name]
        assert found.dims == variable.dims, name
        check_same_attributes(found.attrs, variable.attrs)
        values = variable.values
        if values.dtype.kind == "f":
            assert found.dtype.kind == "f", name
            assert found.dtype.itemsize == values.dtype.itemsize, name
            np.testing.assert_allclose(found.values, values, rtol=1e-6, err_msg=str(name))
        else:
            np.testing.assert_array_equal(found.values, values, err_msg=str(name))
        assert found.encoding.get("_FillValue") == variable.encoding.get("_FillValue") or (
            np.isnan(found.encoding["_FillValue"]) and np.isnan(variable.encoding["_FillValue"])
        ), name


def check_same_attributes(got: Any, want: Any) -> None:
    """Assert that attributes are equal, apart from types that JSON does not distinguish."""
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(value), err_msg=str(name))

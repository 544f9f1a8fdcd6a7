"""What an import brings in: nothing heavy before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "pandas",
    "pyarrow",
    "zarr",
    "xarray",
    "dask",
    "s3fs",
    "botocore",
    "aiobotocore",
    "jinja2",
    "numcodecs",
    "h5py",
)


def _loaded(code: str) -> set[str]:
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})",
    ]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import refshard_fs",
        "from refshard_fs import RefShardFileSystem",
        "from refshard_fs import RefShardFileSystem as FS\nassert FS({'a': 'text'}).cat('a') == b'text'",
        "from refshard_fs import RefShardFileSystem as FS\nassert FS(b'{\"a\":\"text\"}').cat('a') == b'text'",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    assert _loaded(code).isdisjoint(HEAVY)


def test_importing_the_package_alone_does_not_even_import_numpy() -> None:
    assert "numpy" not in _loaded("import refshard_fs")

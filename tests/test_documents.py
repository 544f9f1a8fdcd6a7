"""Every code block of every document runs, in order, against real servers behind the URLs it names."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr
from packaging.version import Version

from tests.servers.http import RangeServer
from tests.servers.wire import Answer, failure
from tests.support.documents import is_run_in_clone, list_blocks
from tests.support.plugins import OPEN, run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    document
    for document in sorted([*ROOT.glob("*.md"), *(ROOT / "docs" / "pages").glob("*.md")])
    if re.search("```|~~~", document.read_text())
]
TOKEN = "not-a-secret"

for needed in ("xarray", "zarr", "h5netcdf", "h5py", "matplotlib", "distributed", "upath", "intake", "xpystac"):
    pytest.importorskip(needed)
if not any(point.name == "refshard" for point in metadata.entry_points(group="fsspec.specs")):
    pytest.skip("documents use refshard:// by its entry point: install the package", allow_module_level=True)
if metadata.version("zarr").startswith("2."):
    pytest.skip("documents are written for zarr 3", allow_module_level=True)
pytestmark = pytest.mark.once


class Scene(NamedTuple):
    """The things that documents expect: a directory with files, servers for placeholders of URLs, an environment."""

    directory: Path
    places: dict[str, str]
    environment: dict[str, str]


class TokenServer(RangeServer):
    """Answer only requests with the token."""

    async def answer(self, head: Any, body: bytes, request: Any) -> Answer:
        if head.headers.get("authorization") != f"Bearer {TOKEN}":
            return failure(401)
        return await super().answer(head, body, request)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, s3_server: Any, dask_cluster: Any) -> Iterator[Scene]:
    """A month of air temperatures as ``air.nc`` and references to it, in a directory, on S3 and on two web servers."""
    from distributed import Client

    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        importlib.import_module("quickstart").write_netcdf(folder / "air.nc")
        references = importlib.import_module("_hdf5").make_references
        air = (folder / "air.nc").read_bytes()
        relative = json.dumps(references(folder / "air.nc", "air.nc")).encode()
        (folder / "refs.json").write_bytes(relative)
        for bucket in ("bucket", "private"):
            s3_server.create_bucket(bucket)
            s3_server.put(f"{bucket}/air.nc", air)
            absolute = references(folder / "air.nc", f"s3://{bucket}/air.nc")
            s3_server.put(f"{bucket}/refs.json", json.dumps(absolute).encode())
        with xr.open_dataset(folder / "air.nc", engine="h5netcdf") as month:
            month = month.load().drop_encoding()
            for day in range(2):
                month.isel(time=slice(4 * day, 4 * day + 4)).to_netcdf(folder / "day.nc", engine="h5netcdf")
                s3_server.put(f"bucket/days/{day}.nc", (folder / "day.nc").read_bytes())
        (folder / "day.nc").unlink()
        files = {"/refs.json": relative, "/air.nc": air}
        environment = {
            "AWS_ENDPOINT_URL": s3_server.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "BUCKET_KEY": s3_server.key,
            "BUCKET_SECRET": s3_server.secret,
            "TOKEN": TOKEN,
        }
        with RangeServer(files) as public, TokenServer(files) as guarded, Client(dask_cluster) as client:
            places = {
                "https://data.example/": f"{guarded.url}/",
                "https://host/": f"{public.url}/",
                "tcp://scheduler:8786": dask_cluster.scheduler_address,
            }
            url = s3_server.endpoint_url
            client.run(lambda: os.environ.update(AWS_ENDPOINT_URL=url))
            yield Scene(folder, places, environment)
            client.run(lambda: os.environ.pop("AWS_ENDPOINT_URL"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_code_block_of_a_document_runs_or_is_left_to_ci(
    document: Path, scene: Scene, tmp_path: Path, fast_python: list[str]
) -> None:
    if "vz.to_kerchunk" in document.read_text() and Version(metadata.version("virtualizarr")) < Version("2.8"):
        pytest.skip("the page is for VirtualiZarr 2.8, which needs Python 3.12")
    directory = shutil.copytree(scene.directory, tmp_path / "directory")
    commands = tmp_path / "bin"
    commands.mkdir()
    entry = "import sys; from refshard_fs.cli import main; sys.exit(main())"
    for name, call in {"refshard": f"-c '{entry}' ", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.join(fast_python)} -W error {call}"$@"\n')
        (commands / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSSPEC_"))}
    environment |= scene.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["PATH"] = f"{commands}{os.pathsep}{environment['PATH']}"
    command = [*fast_python, "-W", "error", str(Path(__file__).with_name("support") / "documents.py"), str(document)]
    done = subprocess.run(
        [*command, json.dumps(scene.places)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = list_blocks(document.read_text())
    told = [
        f"{document.name}:{block.line}: {'left to .ci/run' if is_run_in_clone(block) else 'ran'}" for block in found
    ]
    assert [line for line in done.stdout.splitlines() if line.startswith(f"{document.name}:")] == told


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_fence_of_a_document_belongs_to_a_block(document: Path) -> None:
    fences = [line for line in document.read_text().splitlines() if line.lstrip("> ").startswith(("```", "~~~"))]
    assert len(fences) == 2 * len(list_blocks(document.read_text()))
    if document.name == "README.md":
        assert len(fences) >= 10


def test_blocks_skipped_here_run_in_ci() -> None:
    left = [block for document in DOCUMENTS for block in list_blocks(document.read_text()) if is_run_in_clone(block)]
    script = (ROOT / ".ci" / "stages.py").read_text()
    assert [f"README[{number}]" in script for number in range(len(left))] == [True, True]


def test_ci_starts_from_a_shell() -> None:
    """Some systems start it as ``bash .ci/run``, and ignore its first line."""
    done = subprocess.run(["bash", ROOT / ".ci/run", "--unknown"], capture_output=True, text=True, check=False)
    assert done.stderr == "usage: .ci/run [--quick]\n"


def test_unknown_language_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("```fortran\nend\n```\n")
    command = [sys.executable, str(Path(__file__).with_name("support") / "documents.py"), str(tmp_path / "x.md"), "{}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "python, json or text, found 'fortran'" in done.stderr


def test_plugin_of_the_architecture_page_works(fast_python: list[str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/pages/architecture.md").read_text()
    module, points = re.findall(r"```(?:python|text)\n((?:import numpy|\[project).*?)```", page, re.DOTALL)
    about = tmp_path / "site/tiny_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "tiny_plugin.py").write_text(module)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
    points = points.replace('project.entry-points."refshard.', "refshard.").replace('."]', "]").replace('"', "")
    (about / "entry_points.txt").write_text(points)
    rows = np.arange(10, dtype="<f4").reshape(2, 5)
    file = tmp_path / "x.tiny"
    file.write_bytes(b"TINY" + (2).to_bytes(4, "little") + rows.tobytes())
    program = OPEN + "import xarray as xr\nprint(xr.open_dataset(sys.argv[1], engine='refshard').air.values.tolist())"
    assert run(fast_python, program, about.parent, of=file) == str(rows.tolist())
    run(fast_python, OPEN + "fs.save(sys.argv[1] + '.lines', 'lines')", about.parent, of=file)
    assert (tmp_path / "x.tiny.lines").read_text().endswith(f"air/0.0 {file} 8 20\nair/1.0 {file} 28 20\n")
    file.write_bytes(file.read_bytes()[:-1])
    said = run(fast_python, OPEN + "try:\n    fs.ls('')\nexcept Exception as e:\n    print(e)", about.parent, of=file)
    assert said.startswith(f"{file} cannot be read: it is cut short or damaged")

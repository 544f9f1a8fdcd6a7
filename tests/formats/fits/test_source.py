"""Opening FITS files: few rounds of requests are needed, and damaged or unsupported HDUs are reported."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardFileSystem
from tests.servers.http import RangeServer
from tests.support.damage import check_beside
from tests.support.files_of_arrays import check_commands, check_damage, count_rounds_to_open
from tests.support.fits_files import SKY, make_compressed, make_images, write
from tests.support.shards_in_memory import ROOT, Files

pytestmark = pytest.mark.case(id="P33")

xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
fits = pytest.importorskip("astropy.io.fits")


def test_hdus_that_cannot_be_shown_are_reported(tmp_path: Path) -> None:
    numbers = [fits.Column("a", "C", array=np.ones(2, "c8"))]
    scaled = fits.BinTableHDU.from_columns(numbers, name="SCALED")
    scaled.header["TSCAL1"] = 2.0
    masks = make_compressed("HCOMPRESS_1", "i2", None)
    path = write(tmp_path / "a.fits", scaled, masks, fits.ImageHDU(SKY, name="SCI"))
    path.write_bytes(path.read_bytes() + b"\0" * 2880)
    files = Files({ROOT: path.read_bytes()})
    keyspace = files.open()
    assert list(keyspace.grids) == ["SCI"]
    assert "complex numbers have TSCAL 2" in keyspace.reports["SCALED/a"]
    assert "whose decoders crash on damaged files" in keyspace.reports["TILES"]
    assert "expected an HDU" in keyspace.reports["4"]
    with pytest.raises(ManifestError, match="an image or a table that can be shown.*SCALED/a.*TSCAL"):
        Files({ROOT: write(tmp_path / "b.fits", scaled).read_bytes()}).open()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_header_without_end_is_reported(tmp_path: Path, number: int) -> None:
    """A header without END must not continue in the next header: that would hide an image."""
    images = [fits.ImageHDU(SKY + extra, name=name) for extra, name in enumerate("AB")]
    data = write(tmp_path / "a.fits", *images, primary=SKY).read_bytes()
    ends = [at for at in range(0, len(data), 80) if data[at : at + 80] == b"END".ljust(80)]
    damaged = data[: ends[number]] + b"ENL" + data[ends[number] + 3 :]
    if not number:
        with pytest.raises(ManifestError, match="expected END before byte"):
            Files({ROOT: damaged}).open()
        return
    keyspace = Files({ROOT: damaged}).open()
    assert list(keyspace.grids) == ["PRIMARY", "A"][:number]
    assert "Later HDUs cannot be found" in keyspace.reports[str(number)]


def test_headers_without_data_become_group_attributes(tmp_path: Path) -> None:
    empty = fits.ImageHDU(name="INFO", header=fits.Header([("OBSERVER", "O'Neil")]))
    path = write(tmp_path / "a.fits", empty, fits.ImageHDU(SKY, name="SCI"))
    group = zarr.open_group(f"refshard::{path}", mode="r")
    assert group["INFO"].attrs["OBSERVER"] == "O'Neil"
    group = zarr.open_group(f"refshard::{write(tmp_path / 'b.fits', empty)}", mode="r")
    assert dict(group["INFO"].attrs) == {"EXTNAME": "INFO", "OBSERVER": "O'Neil"}


def test_commands_accept_fits_and_convert_it_to_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.fits", *make_images(), make_compressed("RICE_1", "i2", None))
    refs = check_commands(path, tmp_path, capsys, "SCALED")
    xr.testing.assert_identical(*(xr.open_dataset(fo, engine="refshard").load() for fo in (path, refs)))


@pytest.mark.parametrize("kinds", [("i4",) * 5, ("f4", "f4", "i2") * 2])
def test_opening_takes_few_rounds_and_a_chunk_one_request(
    http_server: RangeServer, tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    large = np.arange(360_000, dtype="i4").reshape(450, 800)
    path = write(
        tmp_path / "a.fits", *(fits.ImageHDU((large + i).astype(k), name=f"I{i}") for i, k in enumerate(kinds))
    )
    url = http_server.put("/a.fits", path.read_bytes())
    fs = RefShardFileSystem(url, skip_instance_cache=True)
    assert "I4" in fs.ls("", detail=False)
    assert count_rounds_to_open(path) <= 3
    assert sum(request.sent for request in http_server.requests()) < 1 << 19
    http_server.clear()
    assert fs.cat_file("I3/0.0") == (large + 3).astype(f">{kinds[3]}").tobytes()
    assert len(http_server.requests()) == 1


def test_damaged_files_raise_only_refshard_errors(tmp_path: Path) -> None:
    check_damage(write(tmp_path / "a.fits", *make_images()).read_bytes(), seed=1, times=50)
    check_damage(write(tmp_path / "b.fits", make_compressed("RICE_1", "i2", None)).read_bytes(), seed=2, times=8)
    check_damage(write(tmp_path / "c.fits", make_compressed("GZIP_2", "i4", (32, 32))).read_bytes(), seed=3, times=8)
    check_damage(write(tmp_path / "d.fits", make_compressed("PLIO_1", "i2", (32, 32))).read_bytes(), seed=4, times=8)


@pytest.mark.parametrize(
    ("old", "new", "shown", "lost"),
    [
        (b"EXTNAME = 'B       '", b"EXTNAME = 'B       ", ["A", "C"], {}),
        (b"BITPIX  =                   16", b"BITPIX  =                   17", ["A"], {"2": "BITPIX is 17"}),
        (b"NAXIS1  =                   40", b"NAXIS1  =             40000000", ["A"], {"2": "cut short"}),
        (b"BSCALE  =                  2.0", b"BSCALE  =               'two'", ["A", "C"], {"B": "BSCALE is 'two'"}),
    ],
)
def test_hdus_before_a_damaged_hdu_are_shown(
    tmp_path: Path, old: bytes, new: bytes, shown: list[str], lost: dict[str, str]
) -> None:
    odd = fits.ImageHDU(np.zeros((30, 40), "i2"), name="B")
    odd.header["BSCALE"] = 2.0
    path = write(tmp_path / "a.fits", fits.ImageHDU(SKY, name="A"), odd, fits.ImageHDU(SKY, name="C"))
    data = path.read_bytes()
    if b"BSCALE" in old and old not in data:
        pytest.skip("this astropy writes no BSCALE")
    assert old in data
    files = Files({ROOT: data.replace(old, new.ljust(len(old)))})
    keys = files.open()
    assert set(shown) <= set(keys.grids)
    assert len(keys.grids) + len(lost) == (3 if "C" in shown else 2)
    assert all(lost[name] in keys.reports[name] for name in lost)
    for name in lost:
        with pytest.raises(ManifestError, match="is not shown"):
            files.read(keys, f"{name}/0.0")


@pytest.mark.parametrize(
    ("edges", "rounds", "requests", "share"),
    [([300] * 60, 7, 59, 0.5), ([300, 250, 210] * 20, 11, 60, 0.8), ([90] * 100, 6, 6, 1.0)],
    ids=["equal", "science, error, quality", "short"],
)
def test_chain_of_many_hdus_takes_few_rounds(edges: list[int], rounds: int, requests: int, share: float) -> None:
    """Many headers are read together where sizes repeat; where HDUs are short, the file is read in blocks."""
    file = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), *(fits.ImageHDU(np.zeros((edge, edge), "i2")) for edge in edges)]).writeto(file)
    files = Files({ROOT: file.getvalue()})
    assert len(files.open().grids) == len(edges)
    assert files.rounds <= rounds
    assert len(files.wanted) <= requests
    assert sum(stop - start for _, start, stop in files.wanted) <= share * len(file.getvalue())


def test_chain_of_various_hdus_takes_about_one_request_each() -> None:
    """Positions of headers are not predicted if sizes do not repeat, except for the first headers."""
    edges = np.random.default_rng(0).permutation(np.arange(400, 460))
    file = io.BytesIO()
    fits.HDUList([fits.PrimaryHDU(), *(fits.ImageHDU(np.zeros((edge, edge), "i2")) for edge in edges)]).writeto(file)
    files = Files({ROOT: file.getvalue()})
    assert len(files.open().grids) == len(edges)
    assert len(files.wanted) <= len(edges) + 9


def test_file_without_padding_is_reported(tmp_path: Path) -> None:
    """A file that ends in the padding of an HDU may lack HDUs: they were once missing without a report."""
    data = write(tmp_path / "a.fits", *(fits.ImageHDU(SKY, name=name) for name in "AB")).read_bytes()
    end = data.index(b"XTENSION", data.index(b"XTENSION") + 1)
    keyspace = Files({ROOT: data[: end - 1]}).open()
    assert list(keyspace.grids) == ["A"]
    assert f"expected padding up to byte {end}" in keyspace.reports["2"]


def test_checksums_are_verified_on_request(tmp_path: Path) -> None:
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=np.arange(5))], name="T")
    hdus = fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(SKY, name="A"), make_compressed("RICE_1", "i2", None), table])
    hdus.writeto(tmp_path / "a.fits", checksum=True)
    data = (tmp_path / "a.fits").read_bytes()
    assert not Files({ROOT: data}).open(verify=True).reports
    in_header, in_data = data.index(b"DATASUM", data.index(b"'A ")) - 60, data.index(b"XTENSION", 6000) - 2880
    for position, reason in ((in_header, "as its CHECKSUM says"), (in_data, "its DATASUM")):
        files = Files({ROOT: data[:position] + b"z" + data[position + 1 :]})
        keyspace = files.open(verify=True)
        assert "A" not in keyspace.grids
        assert reason in keyspace.reports["A"]
        assert {*files.open().grids} == {"A", *keyspace.grids}


def test_damaged_images_give_no_values_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fits", fits.ImageHDU(SKY, name="A"), make_compressed("GZIP_2", "i4", (32, 32)))

    def read(path: Path) -> dict[str, Any]:
        with fits.open(path, memmap=False) as hdus:
            return {hdu.name: np.array(hdu.data) for hdu in hdus[1:]}

    check_beside(path, read, seed=1, times=25, part=(2880, 1 << 30))

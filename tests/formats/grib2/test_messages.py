"""Messages of GRIB files are found in every framing, and by their sidecars."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refshard_fs import ManifestError, RefShardError, RefShardFileSystem
from refshard_fs.core.format import IN_MEMORY, OpenOptions, Probe
from refshard_fs.core.model import Facts, Span
from refshard_fs.formats.grib2 import messages, source
from tests.servers.http import RangeServer
from tests.support.grib_messages import POINTS, many, message, offsets_of, on_level, sidecar
from tests.support.shard_writers import array
from tests.support.shards_in_memory import ROOT, Files

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")


def bulletin(data: bytes) -> bytes:
    return b"****%010d****\nYEUZ98 KWBN 010000\r\r\n" % len(data) + data


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 120)


def message_1() -> bytes:
    return message(sample="regular_ll_sfc_grib1")


# How centres put messages into files, and whether messages of edition 1 are among them: with `t2m`.
FRAMINGS = {
    "a header before each": (lambda some: b"".join(map(bulletin, some)), False),
    "a header between": (lambda some: some[0] + b"".join(map(bulletin, some[1:])), False),
    "control characters": (lambda some: b"".join(b"\x01\r\r\n" + one + b"\r\r\n\x03" for one in some), False),
    "zeros": (lambda some: b"".join(map(padded, some)), False),
    "zeros in front": (lambda some: bytes(40) + b"".join(some), False),
    "newlines": (lambda some: b"\n".join(some) + b"\n", False),
    "text at the end": (lambda some: b"".join(some) + b"written by a test, GRIB or not\n" * 100, False),
    "a text that ends as a message begins": (lambda some: b"".join(some) + b"\nwritten by G", False),
    "long gaps": (lambda some: bytes(70_000).join(some), False),
    "edition 1 in front": (lambda some: message_1() + b"".join(some), True),
    "edition 1 between": (lambda some: message_1().join(some), True),
    "edition 1 at the end": (lambda some: b"".join(some) + padded(message_1()), True),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_messages_are_found_in_every_framing(framing: str) -> None:
    some = [on_level(level, shortName="t") for level in (1000, 850, 700, 500)]
    frame, has_edition_1 = FRAMINGS[framing]
    data = frame(some)
    keyspace = Files({ROOT: data}).open()
    assert len(keyspace.reports) == (2 if framing == "edition 1 between" else 0), "three messages of one field"
    assert ("t2m" in keyspace.grids) == has_edition_1
    np.testing.assert_array_equal(array(data, "t")[...], array(b"".join(some), "t")[...])
    index = "".join(f"{n}:{data.index(one)}:d\n" for n, one in enumerate(some, 1)).encode()
    beside = Files({ROOT: data, ROOT + ".idx": index})
    assert beside.open().grids.keys() == keyspace.grids.keys()
    assert beside.rounds <= 5 or has_edition_1 or framing == "long gaps"


def test_bytes_between_messages_are_reported() -> None:
    some = [on_level(level, shortName="t") for level in (1000, 850, 500)]
    damaged = b"GRIX" + some[1][4:]
    keyspace = Files({ROOT: some[0] + damaged + some[2]}).open()
    assert list(keyspace.reports) == [f"the message at byte {len(some[0])}"]
    at = some[1].index(b"\0\0\0\x48\3")
    damaged = some[1][:at] + b"\0\0\0\x47" + some[1][at + 4 :]  # a section that is one byte shorter than it is
    assert list(Files({ROOT: some[0] + damaged + some[2]}).open().reports) == [f"the message at byte {len(some[0])}"]


@pytest.mark.parametrize("number", range(7))
def test_unexpected_section_number_is_reported(number: int) -> None:
    """Before it was mended: A message whose section 7 had another number was left out without a report."""
    some = [on_level(level, shortName="t") for level in (1000, 850)]
    at = some[0].index(b"\6\6\xff") + 7  # section 6 has 6 bytes, as there is no bitmap; a length of 4 bytes follows
    assert some[0][at] == 7
    damaged = some[0][:at] + bytes([number]) + some[0][at + 1 :]
    assert list(Files({ROOT: damaged + some[1]}).open().reports) == ["the message at byte 0"]
    empty = some[0][:8] + (20).to_bytes(8) + b"7777"
    assert list(Files({ROOT: empty + some[1]}).open().reports) == ["the message at byte 0"]


def test_damaged_ascii_message_is_reported() -> None:
    """Before it was mended: If a message began with a damaged sign, and had only ASCII, it counted as text."""
    some = [on_level(level, shortName="t") for level in (1000, 850)]
    text = b"GRIX" + bytes(60) + b"7777"
    assert list(Files({ROOT: some[0] + text + some[1]}).open().reports) == [f"the message at byte {len(some[0])}"]


def test_padded_messages_take_few_rounds() -> None:
    values = np.arange(90000) % 255 + 0.0
    some = (on_level(500, values=values, Ni=300, Nj=300, bitsPerValue=8, step=n) for n in range(60))
    files = Files({ROOT: b"".join(map(padded, some))})
    files.open()
    assert files.rounds <= 12


@pytest.mark.parametrize("pitch", [4_000, 100_000])
def test_messages_of_various_lengths_are_read_through(pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", 0)
    keys = {"shortName": "t", "Nj": 300, "bitsPerValue": 8}
    wide = [on_level(500, Ni=points, values=np.resize(POINTS, 300 * points), **keys) for points in range(300, 324)]
    data = many() if pitch == 4_000 else b"".join(wide)
    files = Files({ROOT: data})
    keys = files.open().grids.keys()
    assert (
        keys
        == Files({ROOT: data}).run(source.open_(Probe(IN_MEMORY, Facts(len(data)), data), OpenOptions())).grids.keys()
    )
    assert files.rounds <= 7
    assert sum(stop - start for _, start, stop in files.wanted) < 1.1 * len(data)


def test_only_headers_of_large_messages_are_read() -> None:
    keys = {"shortName": "t", "Ni": 700, "Nj": 700, "values": np.resize(POINTS, 490_000)}
    data = b"".join(on_level(500, bitsPerValue=8 + step % 3, step=step, **keys) for step in range(6))
    files = Files({ROOT: data})
    assert files.open().grids
    assert sum(stop - start for _, start, stop in files.wanted) < len(data) / 25


@pytest.mark.usefixtures("large_files")
def test_sidecar_replaces_the_scan_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((source, "WHOLE"), (messages, "EVEN"), (messages, "UNEVEN")):
        monkeypatch.setattr(module, name, 0)
    data = many()
    (tmp_path / "a.grib2").write_bytes(data)
    walked = Files({ROOT: data})
    keys = walked.open().grids.keys()
    assert 20 < walked.rounds < 40, "a round for each message behind the first bytes of the file"
    for kind in (".idx", ".index"):
        beside = Files({ROOT: data, ROOT + kind: sidecar(data, kind)})
        assert beside.open().grids.keys() == keys
        assert beside.rounds == 3, "the head of the file, sidecars, and a window of each message"
    with RangeServer(directory=tmp_path) as server:
        for name in ("a.grib2.idx", "a.grib2.index", "a.index", "a.idx"):
            path = tmp_path / name
            path.write_bytes(sidecar(data, path.suffix))
            server.clear()
            fs = RefShardFileSystem(f"{server.url}/a.grib2", skip_instance_cache=True)
            assert fs.ls("t")
            assert len(server.requests()) < 1 + 4 + 40
            server.clear()
            fs.cat_file("t/3.7.0.0")
            (request,) = server.requests()
            assert (request.stop or 0) - (request.start or 0) < len(data) / 30
            path.unlink()


def test_messages_of_equal_length_are_found_many_at_a_time() -> None:
    values = np.arange(90000) % 255
    keys = {"Ni": 300, "Nj": 300, "bitsPerValue": 8}
    files = Files({ROOT: b"".join(on_level(500, values=values + 0.0, **keys, step=n) for n in range(60))})
    files.open()
    assert files.rounds <= 12
    assert sum(stop - start for _, start, stop in files.wanted) < len(files.files[ROOT]) / 25


def scan(data: bytes) -> Files:
    """Find the messages of ``data``, of which the first 64 KiB are in memory."""
    files = Files({ROOT: data})
    begins = files.run(messages.Grib(ROOT, Span(ROOT, 0, len(data)), len(data), data[: 64 << 10]).find_messages())
    assert [at for at, _ in begins] == offsets_of(data)
    return files


def on_grid(points: int, step: int) -> bytes:
    """Return a message with a byte for each point."""
    keys = {"Ni": points, "Nj": 100, "bitsPerValue": 8, "values": np.resize(POINTS, 100 * points)}
    return on_level(500, step=step, **keys)


def test_scan_of_messages_of_equal_length() -> None:
    """Twice as many windows are read in each round."""
    data = b"".join(on_grid(900, step) for step in range(10)) * 40
    files = scan(data)
    assert files.rounds <= 9
    assert len(files.wanted) <= 400
    assert sum(stop - start for _, start, stop in files.wanted) <= 400 * messages.WINDOW


def test_scan_of_short_messages_of_equal_length() -> None:
    """Blocks with many messages are read, twice as long each time."""
    data = b"".join(on_grid(400, step) for step in range(10)) * 100
    files = scan(data)
    assert len(files.wanted) <= 10
    assert sum(stop - start for _, start, stop in files.wanted) < 1.1 * len(data)


def test_scan_of_messages_whose_lengths_repeat() -> None:
    """Fields of a time step have various lengths, and those of the next step have the same again."""
    data = b"".join(on_grid(points, 0) for points in (900, 2000, 1500, 900, 900, 1700, 3000)) * 40
    files = scan(data)
    assert files.rounds <= 24
    assert len(files.wanted) <= 310


def test_scan_after_a_message_of_another_length() -> None:
    """At most as many windows are read in vain as were right before."""
    one, other = on_grid(900, 0), on_grid(901, 0)
    files = scan(one * 60 + other + one * 60)
    assert len(files.wanted) <= 121 + 64
    assert files.rounds <= 16


def test_sidecar_of_another_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", 0)
    data = many()
    for text, reason in (
        (b"1:0:d\n2:5:d\n", "expected a message at byte 5"),
        (b"1:0:d\nnonsense", "has no offset of a message"),
        (b"1:99999999:d\n", "message at byte 99999999 of"),
        (b'{"_offset": [1]}', "has no offset of a message"),
    ):
        files = Files({ROOT: data, ROOT + ".idx": text})
        with pytest.raises((RefShardError, ValueError), match=reason):
            files.open()


@pytest.mark.parametrize("is_small", [True, False])
def test_subset_with_the_first_byte_of_a_message_is_read(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", (2 << 20) * is_small)
    whole = on_level(500, shortName="t") * 2
    keyspace = Files({ROOT: whole + b"G"}).open()
    assert "t" in keyspace.grids
    assert "ends with the first byte of a message" in keyspace.reports[f"the message at byte {len(whole)}"]


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (before, left)
        for before in (b"", bulletin(b""), bytes(40), bytes(70_000), b"\x01\r\r\n")
        for left in (1, 2, 3, 4, 7, 15)
        if before or left > 1
    ],
)
def test_file_truncated_in_its_magic_bytes_is_an_error(before: bytes, left: int) -> None:
    whole = on_level(500, shortName="t")
    with pytest.raises(ManifestError, match=f"byte {len(whole + before)} has only {left} bytes: the file is cut short"):
        Files({ROOT: whole + before + whole[:left]}).open()


# eccodes' keys of the octets at which axes begin.
AXES = {
    "threshold": "scaleFactorOfLowerLimit",
    "percentile": "percentileValue",
    "constituent": "constituentType",
    "size": "scaleFactorOfFirstSize",
    "wavelength": "scaleFactorOfFirstWavelength",
    "wave_period": "scaleFactorOfLowerWavePeriodLimit",
    "typeOfRelationToReferenceDataset": "typeOfRelationToReferenceDataset",
    "satellite": "satelliteNumber",
    "instrument": "instrumentType",
    "wavenumber": "scaleFactorOfCentralWaveNumber",
    "directionNumber": "waveDirectionNumber",
    "frequencyNumber": "waveFrequencyNumber",
}


@pytest.mark.parametrize("template", messages.TEMPLATES)
def test_product_octets_equal_eccodes(template: int) -> None:
    layout = messages.TEMPLATES[template]
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    eccodes.codes_set(handle, "tablesVersion", 34)
    eccodes.codes_set(handle, "productDefinitionTemplateNumber", template)
    if layout.kind[0] == "NB":
        eccodes.codes_set(handle, "NB", 1)
    wanted = {
        "indicatorOfUnitForForecastTime": layout.unit,
        "typeOfFirstFixedSurface": layout.surface,
        "perturbationNumber": layout.member,
        "yearOfEndOfOverallTimeInterval": layout.end,
        "typeOfStatisticalProcessing": layout.end and layout.end + 12,
        layout.kind[0]: layout.kind[1],
        **{AXES[name]: octet for name, octet, _ in layout.axes},
    }
    begin = eccodes.codes_get(handle, "offsetSection4") - 1
    if template == 44:  # eccodes has the short forecast time of the manual
        wanted["typeOfFirstFixedSurface"] = 34
    for key, octet in wanted.items():
        if octet:
            assert eccodes.codes_get_offset(handle, key) - begin == octet, key
    eccodes.codes_release(handle)


@pytest.mark.parametrize(
    ("template", "keys"),
    [
        (6, {"percentile": [{"percentileValue": value} for value in (10, 50, 90)]}),
        (10, {"percentile": [{"percentileValue": value} for value in (10, 50, 90)]}),
        (5, {"threshold": [{"scaleFactorOfLowerLimit": 1, "scaledValueOfLowerLimit": value} for value in (3, 25)]}),
        (9, {"threshold": [{"scaleFactorOfUpperLimit": 1, "scaledValueOfUpperLimit": value} for value in (3, 25)]}),
        (40, {"constituent": [{"constituentType": value} for value in (30, 31)]}),
        (44, {"size": [{"scaleFactorOfFirstSize": 7, "scaledValueOfFirstSize": value} for value in (3, 5)]}),
        (48, {"wavelength": [{"scaleFactorOfFirstWavelength": 9, "scaledValueOfFirstWavelength": 555}],
              "constituent": [{"constituentType": value} for value in (200, 201)]}),
        (31, {"satellite": [{"NB": 1, "satelliteNumber": value} for value in (55, 70)]}),
        (103, {"wave_period": [{"scaleFactorOfLowerWavePeriodLimit": 0, "scaledValueOfLowerWavePeriodLimit": value}
                              for value in (10, 12, 14)]}),
    ],
)  # fmt: skip
def test_product_properties_become_dimensions(template: int, keys: dict[str, list[dict[str, Any]]]) -> None:
    found = {}
    base = {"tablesVersion": 34, "parameterCategory": 220, "parameterNumber": 200}  # without a name of its own
    for places in itertools.product(*keys.values()):
        merged = {key: value for place in places for key, value in place.items()}
        found[tuple(map(repr, places))] = message(productDefinitionTemplateNumber=template, **base, **merged)
    group = Files({ROOT: b"".join(found.values())}).open()
    assert group.reports == {}
    (name,) = (name for name in group.grids if name.startswith("parameter"))
    fields = array(b"".join(found.values()), name)
    assert fields.shape[:-2] == tuple(len(places) for places in keys.values() if len(places) > 1)
    for field, data in zip(fields[...].reshape(-1, *fields.shape[-2:]), found.values(), strict=True):
        handle = eccodes.codes_new_from_message(data)
        want = eccodes.codes_get_values(handle).astype("f4")
        eccodes.codes_release(handle)
        np.testing.assert_array_equal(field.ravel(), want)
    for axis, places in keys.items():
        values = [value for place in places for key, value in place.items() if key != "NB" and "Factor" not in key]
        factor = next((value for key, value in places[0].items() if "Factor" in key), 0)
        data = b"".join(found.values())
        np.testing.assert_allclose(array(data, axis)[...], np.squeeze(values) / 10.0**factor)


def test_probabilities_of_two_kinds_are_two_variables() -> None:
    keys = {"productDefinitionTemplateNumber": 5, "typeOfLevel": "surface"}
    data = b"".join(message(**keys, probabilityType=kind) for kind in (0, 1))
    group = Files({ROOT: data}).open()
    names = [name for name in group.grids if name.startswith("t_")]
    assert [array(data, name).attrs["GRIB_probabilityType"] for name in names] == [0, 1]

"""Messages of GRIB files are found between other bytes, and by sidecars."""

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
from tests.support.grib_messages import (
    POINTS,
    find_offsets,
    make_many_messages,
    make_message,
    make_message_on_level,
    make_sidecar,
)
from tests.support.shard_writers import open_array
from tests.support.shards_in_memory import ROOT, Files

eccodes = pytest.importorskip("eccodes", exc_type=Exception)
xr = pytest.importorskip("xarray")


def add_header(data: bytes) -> bytes:
    """Return a message after the header of a bulletin."""
    return b"****%010d****\nYEUZ98 KWBN 010000\r\r\n" % len(data) + data


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 120)


def write_edition_1() -> bytes:
    """Return a message of edition 1 whose variable is `t2m`."""
    return make_message(sample="regular_ll_sfc_grib1")


# How messages are joined to a file, and whether some of these messages have edition 1.
FRAMINGS = {
    "a header before each": (lambda messages: b"".join(map(add_header, messages)), False),
    "a header between": (lambda messages: messages[0] + b"".join(map(add_header, messages[1:])), False),
    "control characters": (
        lambda messages: b"".join(b"\x01\r\r\n" + data + b"\r\r\n\x03" for data in messages), False,
    ),
    "zeros": (lambda messages: b"".join(map(pad, messages)), False),
    "zeros in front": (lambda messages: bytes(40) + b"".join(messages), False),
    "newlines": (lambda messages: b"\n".join(messages) + b"\n", False),
    "text at the end": (lambda messages: b"".join(messages) + b"written by a test, GRIB or not\n" * 100, False),
    "text that ends with the first letter of GRIB": (lambda messages: b"".join(messages) + b"\nwritten by G", False),
    "long gaps": (lambda messages: bytes(70_000).join(messages), False),
    "edition 1 in front": (lambda messages: write_edition_1() + b"".join(messages), True),
    "edition 1 between": (lambda messages: write_edition_1().join(messages), True),
    "edition 1 at the end": (lambda messages: b"".join(messages) + pad(write_edition_1()), True),
}  # fmt: skip


@pytest.mark.parametrize("framing", FRAMINGS)
def test_messages_are_found_between_other_bytes(framing: str) -> None:
    fields = [make_message_on_level(level, shortName="t") for level in (1000, 850, 700, 500)]
    join, has_edition_1 = FRAMINGS[framing]
    data = join(fields)
    keyspace = Files({ROOT: data}).open()
    assert len(keyspace.reports) == (2 if framing == "edition 1 between" else 0), "three messages of one field"
    assert ("t2m" in keyspace.grids) == has_edition_1
    np.testing.assert_array_equal(open_array(data, "t")[...], open_array(b"".join(fields), "t")[...])
    index = "".join(f"{n}:{data.index(field)}:d\n" for n, field in enumerate(fields, 1)).encode()
    files = Files({ROOT: data, ROOT + ".idx": index})
    assert files.open().grids.keys() == keyspace.grids.keys()
    assert files.rounds <= 5 or has_edition_1 or framing == "long gaps"


def test_damaged_messages_between_whole_messages_are_reported() -> None:
    fields = [make_message_on_level(level, shortName="t") for level in (1000, 850, 500)]
    report = f"the message at byte {len(fields[0])}"
    damaged = b"GRIX" + fields[1][4:]
    assert list(Files({ROOT: fields[0] + damaged + fields[2]}).open().reports) == [report]
    at = fields[1].index(b"\0\0\0\x48\3")
    damaged = fields[1][:at] + b"\0\0\0\x47" + fields[1][at + 4 :]  # the stated size of a section is one byte too small
    assert list(Files({ROOT: fields[0] + damaged + fields[2]}).open().reports) == [report]


@pytest.mark.parametrize("number", range(7))
def test_unexpected_section_number_is_reported(number: int) -> None:
    """Section 7 has another number, or a message has no sections."""
    fields = [make_message_on_level(level, shortName="t") for level in (1000, 850)]
    at = fields[0].index(b"\6\6\xff") + 7  # a section 6 without a bitmap has 6 bytes, and the next length has 4
    assert fields[0][at] == 7
    damaged = fields[0][:at] + bytes([number]) + fields[0][at + 1 :]
    assert list(Files({ROOT: damaged + fields[1]}).open().reports) == ["the message at byte 0"]
    empty = fields[0][:8] + (20).to_bytes(8) + b"7777"
    assert list(Files({ROOT: empty + fields[1]}).open().reports) == ["the message at byte 0"]


def test_damaged_message_of_ascii_bytes_is_reported() -> None:
    """A damaged message is not mistaken for a text between messages, although it does not begin with GRIB."""
    fields = [make_message_on_level(level, shortName="t") for level in (1000, 850)]
    damaged = b"GRIX" + bytes(60) + b"7777"
    reports = Files({ROOT: fields[0] + damaged + fields[1]}).open().reports
    assert list(reports) == [f"the message at byte {len(fields[0])}"]


def test_padded_messages_are_found_in_few_rounds() -> None:
    values = np.arange(90000) % 255 + 0.0
    fields = (make_message_on_level(500, values=values, Ni=300, Nj=300, bitsPerValue=8, step=n) for n in range(60))
    files = Files({ROOT: b"".join(map(pad, fields))})
    files.open()
    assert files.rounds <= 12


@pytest.mark.parametrize("pitch", [4_000, 100_000])
def test_messages_of_various_lengths_take_few_rounds(pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", 0)
    keys = {"shortName": "t", "Nj": 300, "bitsPerValue": 8}
    wide = [
        make_message_on_level(500, Ni=points, values=np.resize(POINTS, 300 * points), **keys)
        for points in range(300, 324)
    ]
    data = make_many_messages() if pitch == 4_000 else b"".join(wide)
    files = Files({ROOT: data})
    keys = files.open().grids.keys()
    assert (
        keys
        == Files({ROOT: data}).run(source.open_(Probe(IN_MEMORY, Facts(len(data)), data), OpenOptions())).grids.keys()
    )
    assert files.rounds <= 7
    assert sum(stop - start for _, start, stop in files.wanted) < 1.1 * len(data)


def test_opening_reads_4_percent_of_large_messages() -> None:
    keys = {"shortName": "t", "Ni": 700, "Nj": 700, "values": np.resize(POINTS, 490_000)}
    data = b"".join(make_message_on_level(500, bitsPerValue=8 + step % 3, step=step, **keys) for step in range(6))
    files = Files({ROOT: data})
    assert files.open().grids
    assert sum(stop - start for _, start, stop in files.wanted) < len(data) / 25


@pytest.mark.usefixtures("large_files")
def test_sidecar_replaces_the_scan_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((source, "WHOLE"), (messages, "EVEN"), (messages, "UNEVEN")):
        monkeypatch.setattr(module, name, 0)
    data = make_many_messages()
    (tmp_path / "a.grib2").write_bytes(data)
    alone = Files({ROOT: data})
    keys = alone.open().grids.keys()
    assert 20 < alone.rounds < 40, "a round for each message after the first bytes of the file"
    for kind in (".idx", ".index"):
        with_sidecar = Files({ROOT: data, ROOT + kind: make_sidecar(data, kind)})
        assert with_sidecar.open().grids.keys() == keys
        assert with_sidecar.rounds == 3, "the head of the file, sidecars, and a window of each message"
    with RangeServer(directory=tmp_path) as server:
        for name in ("a.grib2.idx", "a.grib2.index", "a.index", "a.idx"):
            path = tmp_path / name
            path.write_bytes(make_sidecar(data, path.suffix))
            server.clear()
            fs = RefShardFileSystem(f"{server.url}/a.grib2", skip_instance_cache=True)
            assert fs.ls("t")
            assert len(server.requests()) < 1 + 4 + 40
            server.clear()
            fs.cat_file("t/3.7.0.0")
            (request,) = server.requests()
            assert (request.stop or 0) - (request.start or 0) < len(data) / 30
            path.unlink()


def test_messages_of_equal_length_take_few_rounds() -> None:
    values = np.arange(90000) % 255
    keys = {"Ni": 300, "Nj": 300, "bitsPerValue": 8}
    files = Files({ROOT: b"".join(make_message_on_level(500, values=values + 0.0, **keys, step=n) for n in range(60))})
    files.open()
    assert files.rounds <= 12
    assert sum(stop - start for _, start, stop in files.wanted) < len(files.files[ROOT]) / 25


def find_messages(data: bytes) -> Files:
    """Find the messages of ``data``, of which the first 64 KiB are in memory; the result counts the requests."""
    files = Files({ROOT: data})
    begins = files.run(messages.Grib(ROOT, Span(ROOT, 0, len(data)), len(data), data[: 64 << 10]).find_messages())
    assert [at for at, _ in begins] == find_offsets(data)
    return files


def write_message(points: int, step: int) -> bytes:
    """Return a message of 100 rows of ``points`` values, each of a byte."""
    keys = {"Ni": points, "Nj": 100, "bitsPerValue": 8, "values": np.resize(POINTS, 100 * points)}
    return make_message_on_level(500, step=step, **keys)


def test_windows_of_messages_of_equal_length_are_read_together() -> None:
    """Each round reads twice as many windows as the round before."""
    data = b"".join(write_message(900, step) for step in range(10)) * 40
    files = find_messages(data)
    assert files.rounds <= 9
    assert len(files.wanted) <= 400
    assert sum(stop - start for _, start, stop in files.wanted) <= 400 * messages.WINDOW


def test_short_messages_are_read_in_blocks() -> None:
    """Each block is twice as long as the block before."""
    data = b"".join(write_message(400, step) for step in range(10)) * 100
    files = find_messages(data)
    assert len(files.wanted) <= 10
    assert sum(stop - start for _, start, stop in files.wanted) < 1.1 * len(data)


def test_messages_whose_lengths_repeat_take_few_rounds() -> None:
    """The fields of a step have various lengths; the fields of the next step have the same lengths, in this order."""
    data = b"".join(write_message(points, 0) for points in (900, 2000, 1500, 900, 900, 1700, 3000)) * 40
    files = find_messages(data)
    assert files.rounds <= 24
    assert len(files.wanted) <= 310


def test_message_of_another_length_costs_few_requests() -> None:
    """The windows that are read in vain are at most as many as the windows before them."""
    data, other = write_message(900, 0), write_message(901, 0)
    files = find_messages(data * 60 + other + data * 60)
    assert len(files.wanted) <= 121 + 64
    assert files.rounds <= 16


def test_sidecar_that_does_not_fit_the_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", 0)
    data = make_many_messages()
    for text, reason in (
        (b"1:0:d\n2:5:d\n", "expected a message at byte 5"),
        (b"1:0:d\nnonsense", "expected the offset of a message"),
        (b"1:99999999:d\n", "message at byte 99999999: expected 0 to"),
        (b'{"_offset": [1]}', "expected the offset of a message"),
    ):
        files = Files({ROOT: data, ROOT + ".idx": text})
        with pytest.raises((RefShardError, ValueError), match=reason):
            files.open()


@pytest.mark.parametrize("is_small", [True, False])
def test_file_that_ends_in_one_byte_of_a_message_is_read(is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE", (2 << 20) * is_small)
    whole = make_message_on_level(500, shortName="t") * 2
    keyspace = Files({ROOT: whole + b"G"}).open()
    assert "t" in keyspace.grids
    assert "ends with the first byte of a message" in keyspace.reports[f"the message at byte {len(whole)}"]


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (before, left)
        for before in (b"", add_header(b""), bytes(40), bytes(70_000), b"\x01\r\r\n")
        for left in (1, 2, 3, 4, 7, 15)
        if before or left > 1
    ],
)
def test_file_that_ends_within_a_message_header_is_an_error(before: bytes, left: int) -> None:
    whole = make_message_on_level(500, shortName="t")
    with pytest.raises(ManifestError, match=rf"byte {len(whole + before)}\b.*{left} bytes.* file is cut short"):
        Files({ROOT: whole + before + whole[:left]}).open()


# Keys of eccodes for the first octet of each axis.
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
def test_positions_of_product_fields_equal_those_of_eccodes(template: int) -> None:
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
    if template == 44:  # eccodes writes an older form, with a forecast time of 2 octets
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
    base = {"tablesVersion": 34, "parameterCategory": 220, "parameterNumber": 200}  # a parameter without a name
    for places in itertools.product(*keys.values()):
        merged = {key: value for place in places for key, value in place.items()}
        found[tuple(map(repr, places))] = make_message(productDefinitionTemplateNumber=template, **base, **merged)
    group = Files({ROOT: b"".join(found.values())}).open()
    assert group.reports == {}
    (name,) = (name for name in group.grids if name.startswith("parameter"))
    fields = open_array(b"".join(found.values()), name)
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
        np.testing.assert_allclose(open_array(data, axis)[...], np.squeeze(values) / 10.0**factor)


def test_two_types_of_probability_are_two_variables() -> None:
    keys = {"productDefinitionTemplateNumber": 5, "typeOfLevel": "surface"}
    data = b"".join(make_message(**keys, probabilityType=kind) for kind in (0, 1))
    group = Files({ROOT: data}).open()
    names = [name for name in group.grids if name.startswith("t_")]
    assert [open_array(data, name).attrs["GRIB_probabilityType"] for name in names] == [0, 1]

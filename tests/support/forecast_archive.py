"""Make small archives of forecasts like those of NOAA and ECMWF: names of files, sidecars, and GRIB2 by eccodes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tests.servers.http import RangeServer
from tests.support.grib_messages import eccodes, make_message


class Published(NamedTuple):
    """A field: eccodes' keys, its names in sidecars (wgrib2's name and level; ECMWF's members), and its range."""

    keys: dict[str, Any]
    name: str
    level: str
    mars: dict[str, str]
    process: str = ""  # wgrib2's name of the statistic
    covers: str = ""  # as in a cube's document: "run", "last N" or "bucket N"

    def begin(self, step: int) -> int:
        what, _, hours = self.covers.partition(" ")
        if what == "last":
            return max(step - int(hours), 0)
        if what == "bucket":
            return max(step - 1, 0) // int(hours) * int(hours)
        return 0 if what == "run" else step


def _publish_level(name: str, short: str, level: int) -> Published:
    keys = {"shortName": short, "typeOfLevel": "isobaricInhPa", "level": level}
    return Published(keys, name, f"{level} mb", {"param": short, "levtype": "pl", "levelist": str(level)})


_RAIN = {"productDefinitionTemplateNumber": 8, "shortName": "tp", "stepType": "accum"}
_AT_2_M = {"shortName": "2t", "typeOfLevel": "heightAboveGround", "level": 2}
FIELDS = (
    Published(_AT_2_M, "TMP", "2 m above ground", {"param": "2t", "levtype": "sfc"}),
    *(
        _publish_level(name, short, level)
        for name, short in (("TMP", "t"), ("HGT", "gh"))
        for level in (1000, 850, 500)
    ),
    Published(_RAIN, "APCP", "surface", {"param": "tp", "levtype": "sfc"}, "acc", "run"),
)
LAST_HOUR = Published(_RAIN, "APCP", "surface", {}, "acc", "last 1")
BUCKET = Published(_RAIN, "APCP", "surface", {}, "acc", "bucket 6")


class Archive(NamedTuple):
    """The names of an archive's files; ``names`` are those of members, from number 0 on, if each has a file."""

    url: str
    sidecar: str
    dialect: str
    fields: Sequence[Published]
    names: Sequence[str] = ()


ARCHIVES = {
    "hrrr": Archive(
        "hrrr.{time:%Y%m%d}/conus/hrrr.t{time:%H}z.wrfsfcf{step:02}.grib2",
        "hrrr.{time:%Y%m%d}/conus/hrrr.t{time:%H}z.wrfsfcf{step:02}.grib2.idx",
        "wgrib2",
        (*FIELDS, LAST_HOUR),
    ),
    "gfs": Archive(
        "gfs.{time:%Y%m%d}/{time:%H}/atmos/gfs.t{time:%H}z.pgrb2.0p25.f{step:03}",
        "gfs.{time:%Y%m%d}/{time:%H}/atmos/gfs.t{time:%H}z.pgrb2.0p25.f{step:03}.idx",
        "wgrib2",
        (*FIELDS, BUCKET),
    ),
    "gefs": Archive(
        "gefs.{time:%Y%m%d}/{time:%H}/atmos/pgrb2ap5/ge{number}.t{time:%H}z.pgrb2a.0p50.f{step:03}",
        "gefs.{time:%Y%m%d}/{time:%H}/atmos/pgrb2ap5/ge{number}.t{time:%H}z.pgrb2a.0p50.f{step:03}.idx",
        "wgrib2",
        FIELDS,
        ("c00", "p01", "p02"),
    ),
    "ifs": Archive(
        "{time:%Y%m%d}/{time:%H}z/ifs/0p25/oper/{time:%Y%m%d%H}0000-{step}h-oper-fc.grib2",
        "{time:%Y%m%d}/{time:%H}z/ifs/0p25/oper/{time:%Y%m%d%H}0000-{step}h-oper-fc.index",
        "ecmwf",
        FIELDS,
    ),
    "ifs-ens": Archive(
        "{time:%Y%m%d}/{time:%H}z/ifs/0p25/enfo/{time:%Y%m%d%H}0000-{step}h-enfo-ef.grib2",
        "{time:%Y%m%d}/{time:%H}z/ifs/0p25/enfo/{time:%Y%m%d%H}0000-{step}h-enfo-ef.index",
        "ecmwf",
        FIELDS,
    ),
}


def fill(template: str, at: datetime, step: int, number: str) -> str:
    return template.format(time=at, step=step, number=number)


def publish(server: RangeServer, archive: Archive, at: datetime, step: int, members: Sequence[int] = ()) -> Any:
    """Put the files of a step of a run on a server; return the values by wgrib2's name, level, range and member."""
    values: dict[tuple[str, str, str, int], Any] = {}
    is_apart = bool(archive.names)  # a file for each member
    for some in [[number] for number in members] if is_apart else [list(members) or [0]]:
        data, lines = b"", []
        for number, one in ((number, one) for number in some for one in archive.fields):
            found = _make_message(one, at, step, number if members else None)
            lines.append(_write_line(archive.dialect, len(lines) + 1, len(data), len(found), one, at, step, number))
            values[one.name, one.level, one.covers, number] = decode(found)
            data += found
        name = archive.names[some[0]] if is_apart else ""
        server.put(fill(archive.url, at, step, name), data)
        server.put(fill(archive.sidecar, at, step, name), "".join(lines).encode())
    return values


def _make_message(one: Published, at: datetime, step: int, number: int | None) -> bytes:
    keys: dict[str, Any] = {"dataDate": int(f"{at:%Y%m%d}"), "dataTime": int(f"{at:%H%M}")}
    if number is not None:
        keys["number"] = number
    keys["stepRange"] = f"{one.begin(step)}-{step}" if one.process else str(step)
    seed = zlib.crc32(repr((one.name, one.level, at, one.begin(step), step, number)).encode())
    handle = eccodes.codes_clone(_make_handle(FIELDS.index(one) if one in FIELDS else -1, number is not None))
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_values(handle, np.random.default_rng(seed).normal(280, 9, 496))
    data = bytes(eccodes.codes_get_message(handle))
    eccodes.codes_release(handle)
    return data


@cache
def _make_handle(place: int, is_member: bool) -> Any:
    """Return a message of the field number ``place`` of `FIELDS`; cached, because eccodes sets names slowly."""
    one = FIELDS[place]
    template = {"productDefinitionTemplateNumber": 11 if one.process else 1} if is_member else {}
    return eccodes.codes_new_from_message(
        make_message(**template, **{k: v for k, v in one.keys.items() if k not in template})
    )


def decode(data: bytes) -> Any:
    handle = eccodes.codes_new_from_message(data)
    values = eccodes.codes_get_values(handle).astype("f4").reshape(31, 16)
    eccodes.codes_release(handle)
    return values


def find_section_3(data: bytes) -> bytes:
    at = 16
    while data[at + 4] != 3:
        at += int.from_bytes(data[at : at + 4])
    return data[at : at + int.from_bytes(data[at : at + 4])]


def _write_line(
    dialect: str, number: int, offset: int, length: int, one: Published, at: datetime, step: int, member: int
) -> str:
    if dialect == "wgrib2":
        begin, unit, first, last = one.begin(step), "hour", one.begin(step), step
        if one.process and not begin % 24 and not step % 24:
            unit, first, last = "day", begin // 24, step // 24
        text = f"{first}-{last} {unit} {one.process} fcst" if one.process else f"{step} hour fcst" if step else "anl"
        more = f"ENS=+{member}" if member else ""
        return f"{number}:{offset}:d={at:%Y%m%d%H}:{one.name}:{one.level}:{text}:{more}\n"
    kind = {"type": "pf", "number": str(member)} if member else {"type": "fc"}
    members = {"domain": "g", "date": f"{at:%Y%m%d}", "time": f"{at:%H%M}", "expver": "0001", "class": "od", **kind,
               "step": str(step), **one.mars}  # fmt: skip
    return json.dumps({**members, "_offset": offset, "_length": length}) + "\n"

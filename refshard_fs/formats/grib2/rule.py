"""Open a rule: a document of a few kB that shows an archive of GRIB files without listing them. No I/O here.

The document (``FORMATS.md`` specifies it) contains templates of URLs, the runs, steps and members, and for each
variable the line of a sidecar. A chunk is a field: its offset comes from the sidecar of its file, and the message at
this offset must contain the field. The document stays the same when runs are added to the archive.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import msgspec
import numpy as np

from refshard_fs.core import zarrmeta
from refshard_fs.core.array_group import ENCODINGS, ArrayDescription, ArrayGroup, Chunks
from refshard_fs.core.format import OpenOptions, Probe
from refshard_fs.core.keys import ChunkGrid, is_key
from refshard_fs.core.keyspace import KeySpace, find_chunk
from refshard_fs.core.model import (
    Entry,
    Facts,
    Inline,
    Listed,
    Load,
    Packed,
    ParsedIndex,
    Span,
    Stat,
    Steps,
    run_together,
)
from refshard_fs.errors import ManifestError, NotListable, NotYetThere, ReferenceNotReachable
from refshard_fs.formats.grib2.messages import (
    NO_SURFACE,
    TEMPLATES,
    Field,
    Parameter,
    UnshownPart,
    find_message,
    parse_integer,
    parse_length,
)
from refshard_fs.formats.grib2.source import (
    ATTRIBUTES,
    LEVEL_UNITS,
    FieldGroup,
    get_scan_flags,
    make_recipe,
    parse_message,
)
from refshard_fs.references.values import decode_base64, make_resolver
from refshard_fs.security.policy import directory_of

HOUR: Final = timedelta(hours=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 1 << 20  # limit of the runs, and of the steps or members, in a document
_LATE: Final = 128  # limit of the runs that may be incomplete: one sidecar of each is requested to open the document
_RUNS: Final = 1 << 31  # limit of the runs in the keys of an archive without an end
_LISTED: Final = 1 << 14  # limit of the files whose sidecars are read to list fields
_RUNS_PER_CHUNK: Final = 1 << 10  # most runs in a chunk of `valid_time`
_LINE_BYTES: Final = 400  # bytes of a line of a sidecar in memory


# Sidecars, whose lines locate messages.


class Sidecar(NamedTuple):
    """The place of each message of a file, by the members of its line: begin and end in bytes.

    An end of None is the end of the file. If lines are equal, the first one counts: NOAA writes a sum twice if two of
    its time ranges are equal.
    """

    lines: dict[tuple[str, ...], tuple[int, int | None]]

    @property
    def nbytes(self) -> int:
        return _LINE_BYTES * len(self.lines)


class Dialect(NamedTuple):
    """A format of sidecars.

    ``members`` are the names of the members of a line that identify a field. ``templates`` has the members that are the
    same for all variables, as templates; the document has the other members. A member that a line lacks has its value
    in ``default``, or "". ``parse`` returns the members of a line, and the offset and the length of the message; the
    length is None if the message ends where the next one begins.
    """

    members: tuple[str, ...]
    templates: Mapping[str, str]
    default: Mapping[str, str]
    parse: Callable[[str], tuple[Mapping[str, str], int, int | None]]


_HOURS: Final = {"min": 1 / 60, "hour": 1, "day": 24}
_FORECAST: Final = re.compile(r"(\d+)(?:-(\d+))? (min|hour|day) (?:(\w+) )?(?:fcst|anl)")


def _parse_wgrib2(line: str) -> tuple[dict[str, str], int, None]:
    """Return the members of ``12:34567:d=2026112806:APCP:surface:0-1 day acc fcst:``."""
    _, offset, date, name, level, forecast, *rest = line.split(":")
    more = ":".join(part for part in rest if part and not part.startswith("ENS="))
    members = {"date": date.removeprefix("d="), "name": name, "level": level, "more": more}
    if forecast == "anl":
        return {**members, "process": "", "from": "0", "to": "0"}, int(offset), None
    matched = _FORECAST.fullmatch(forecast)
    if matched is None:
        return {**members, "process": forecast}, int(offset), None
    first, last, unit, process = matched.groups()
    begin, end = (f"{int(number) * _HOURS[unit]:g}" for number in (first, last or first))
    return {**members, "process": process or "", "from": begin, "to": end}, int(offset), None


_FORECASTS: Final = frozenset(["an", "fc", "cf", "pf"])  # types of fields that step and member identify already


def _parse_ecmwf(line: str) -> tuple[dict[str, str], int, int]:
    """Return the members of a JSON object with ``param``, ``levtype``, ... and ``_offset`` and ``_length``."""
    parsed = json.loads(line)
    members = {name: str(value) for name, value in parsed.items()}
    if members.get("type") in _FORECASTS:
        del members["type"]
    return members, int(parsed["_offset"]), int(parsed["_length"])


DIALECTS: Final = {
    "wgrib2": Dialect(
        ("name", "level", "process", "more", "date", "from", "to"),
        {"date": "{time:%Y%m%d%H}", "from": "{begin}", "to": "{step}"},
        {},
        _parse_wgrib2,
    ),
    "ecmwf": Dialect(
        ("param", "levtype", "levelist", "type", "number", "date", "time", "step"),
        {"date": "{time:%Y%m%d}", "time": "{time:%H%M}", "step": "{step}", "number": "{number}"},
        {"number": "0"},
        _parse_ecmwf,
    ),
}


def parse_lines(data: bytes, name: str) -> Sidecar:
    """Parse a sidecar in the dialect ``name``; ValueError if a line has another form."""
    dialect = DIALECTS[name]
    messages: list[tuple[tuple[str, ...], int, int | None]] = []
    for line in data.decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        try:
            members, offset, length = dialect.parse(line)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ValueError(f"expected a line as {name} writes it, found {line[:80]!r}") from None
        if offset < 0 or (length is not None and length <= 0):
            raise ValueError(f"expected an offset of at least 0 and a positive length, found {line[:80]!r}")
        key = tuple(members.get(member, dialect.default.get(member, "")) for member in dialect.members)
        messages.append((key, offset, length))
    offsets = sorted({offset for _, offset, _ in messages})
    next_offsets = dict(zip(offsets, [*offsets[1:], None], strict=True))
    lines: dict[tuple[str, ...], tuple[int, int | None]] = {}
    for key, offset, length in messages:
        lines.setdefault(key, (offset, next_offsets[offset] if length is None else offset + length))
    return Sidecar(lines)


# The document.

_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Numbers = list[_Natural | list[_Natural]]  # an item is a number, or [first, last, step] of several numbers


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The runs: one every ``every`` hours from ``start`` to ``stop``; without ``stop``, the archive has no end.

    All files of a run exist ``due`` hours after its time.
    """

    start: str
    every: _Positive
    stop: str | None = None
    due: _Natural = 24


class Forecasts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The steps, in hours. ``last`` is the last step of shorter runs, by their hour of the day as two digits."""

    values: _Numbers
    last: dict[str, int] = {}


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The numbers of the members of an ensemble, and their ``names`` in URLs, if these are not the numbers."""

    values: _Numbers
    names: list[str] = []


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The kind of field that the messages of a variable contain: the member ``message`` of a variable in the document.

    ``parameter`` is discipline, category and number, a surface is [kind, value]. A surface [kind] has the value of the
    level that is read.
    """

    parameter: tuple[int, int, int]
    surfaces: tuple[tuple[float, ...], ...] = ()
    statistic: int = 255
    number: int = 0  # the number at `Product.kind` of the template
    axes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def make(cls, parameter: Parameter) -> Kind:
        """Return the kind of a field that has this parameter."""
        surfaces = tuple(
            (surface.kind, surface.compute_value()) for surface in parameter.surfaces if surface.kind != NO_SURFACE.kind
        )
        numbers = parameter.discipline, parameter.category, parameter.number
        return cls(numbers, surfaces, parameter.statistic, parameter.kind, parameter.axes)

    def __str__(self) -> str:
        numbers = ".".join(map(str, self.parameter))
        surfaces = " and ".join(f"{value:g} of kind {kind:g}" for kind, value in self.surfaces)
        return f"{numbers} at {surfaces or 'no level'} (statistic {self.statistic}, {self.number}, {list(self.axes)})"

    def fill_level(self, level: float | None, unit: int) -> Kind:
        """Return the kind with ``level`` as the value of surfaces without one, where ``unit`` is a power of ten."""
        surfaces = tuple(
            surface if len(surface) == 2 else (surface[0], (level or 0) * 10.0**unit) for surface in self.surfaces
        )
        return msgspec.structs.replace(self, surfaces=surfaces)

    def is_like(self, other: Kind) -> bool:
        """Return whether ``other`` is equal, except for the rounding of levels."""
        pairs = list(zip(self.surfaces, other.surfaces, strict=False))
        return (
            len(self.surfaces) == len(other.surfaces)
            and all(math.isclose(*numbers, rel_tol=1e-9) for pair in pairs for numbers in zip(*pair, strict=True))
            and msgspec.structs.replace(self, surfaces=()) == msgspec.structs.replace(other, surfaces=())
        )


class RuleVariable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A variable: members of its lines in sidecars, the kind of its messages, and the name and values of its levels.

    ``covers`` is the time range of its sums or means, which ends at the step. It begins with the run ("run"), N hours
    before the step ("last N"), or at the last multiple of N hours before the step ("bucket N"). ``grid`` is an index
    into the grids of the document.
    """

    line: dict[str, str]
    message: Kind
    level: str = ""
    levels: list[float] = []
    covers: str = ""
    grid: _Natural = 0
    attributes: dict[str, Any] = {}

    def compute_begin(self, step: int) -> int:
        """Return the step, in hours, at which the time range of the values at ``step`` begins."""
        kind, _, hours = self.covers.partition(" ")
        match kind:
            case "run":
                return 0
            case "last":
                return max(step - int(hours), 0)
            case "bucket":
                return max(step - 1, 0) // int(hours) * int(hours)
        return step


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The document. ``url`` and ``sidecar`` are templates of URLs; ``grids`` are sections 3 of messages in base64."""

    refshard: Literal["rule"]
    url: str
    sidecar: str
    dialect: Literal["wgrib2", "ecmwf"]
    time: Times
    step: Forecasts
    grids: list[str]
    variables: dict[str, RuleVariable]
    number: Members | None = None

    @classmethod
    def parse(cls, data: bytes, where: str) -> Rule:
        """Parse the document in ``data``; ManifestError, whose text begins with ``where``, if it is invalid."""
        try:
            rule = msgspec.convert(zarrmeta.loads(data), cls)
            rule.check()
        except (ValueError, OverflowError, msgspec.ValidationError) as e:
            raise ManifestError(f"{where}: {e}") from e
        return rule

    def dumps(self) -> bytes:
        """Return the document as JSON, in which each variable is one line."""
        head = {name: value for name, value in msgspec.to_builtins(self).items() if name != "variables"}
        lines = [
            b"%b:%b" % (zarrmeta.dumps(name), msgspec.json.encode(variable))
            for name, variable in self.variables.items()
        ]
        return zarrmeta.dumps(head)[:-1] + b',"variables":{\n' + b",\n".join(lines) + b"\n}}\n"

    def check(self) -> None:
        """Raise ValueError if a member is invalid, or contradicts another."""
        names = {"time", "step"} | ({"number"} if self.number else set())
        for template in (self.url, self.sidecar):
            check_template(template, names)
        dialect = DIALECTS[self.dialect]
        taken = {"time", "step", "number", "valid_time", *(variable.level for variable in self.variables.values())}
        for name, variable in self.variables.items():
            if not is_key(name) or "/" in name or name in taken:
                raise ValueError(
                    f"{name!r} cannot be the name of a variable: expected a name that is not empty, not a path, and "
                    "not the name of a coordinate"
                )
            unknown = variable.line.keys() - set(dialect.members)
            if unknown:
                raise ValueError(
                    f"the line of {name!r} has a member {min(unknown)!r}: expected one of {', '.join(dialect.members)}"
                )
            for text in variable.line.values():
                check_template(text, names | {"begin"} | ({"level"} if variable.levels else set()))
            if variable.covers and not re.fullmatch(r"run|(?:last|bucket) [1-9]\d{0,3}", variable.covers):
                raise ValueError(f"{name!r} covers {variable.covers!r}: expected 'run', 'last N' or 'bucket N'")
            if variable.grid >= len(self.grids):
                raise ValueError(
                    f"{name!r} has grid {variable.grid}: expected less than {len(self.grids)}, the number of grids"
                )
            surfaces = variable.message.surfaces
            numbers = [*variable.levels, *(number for surface in surfaces for number in surface)]
            if not all(map(math.isfinite, numbers)) or not {len(surface) for surface in surfaces} <= {1, 2}:
                raise ValueError(
                    f"{name!r} has levels {variable.levels} and surfaces {list(surfaces)}: expected finite numbers as "
                    "levels, and surfaces [kind] or [kind, value]"
                )
            if bool(variable.levels) != bool(variable.level):
                raise ValueError(
                    f"{name!r} has levels {variable.levels} and their name is {variable.level!r}: expected a name with "
                    "levels, or none of them"
                )
        if self.number and self.number.names and len(self.number.names) != len(self.members):
            raise ValueError(
                f"it has {len(self.number.names)} names of members: expected {len(self.members)}, one for each member"
            )
        if self.time.stop is None and self.time.due > _LATE * self.time.every:
            raise ValueError(
                f"its runs are due after {self.time.due} hours: expected at most {_LATE * self.time.every} hours, the "
                f"time of {_LATE} runs"
            )
        if not self.steps:
            raise ValueError("it has no steps: expected at least one in ['step']['values']")
        if self.start > parse_time(self.time.stop or self.time.start):
            raise ValueError(f"its start is {self.time.start}: expected at most its stop, {self.time.stop}")

    @property
    def start(self) -> datetime:
        return parse_time(self.time.start)

    def compute_time(self, number: int) -> datetime:
        """Return the time of the run with this number; run 0 is at ``start``."""
        return self.start + number * self.time.every * HOUR

    @property
    def steps(self) -> list[int]:
        return _list_numbers(self.step.values)

    @property
    def members(self) -> list[int]:
        return _list_numbers(self.number.values) if self.number else []


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601, which is in UTC if it has no time zone; ValueError if ``text`` has another form."""
    parsed = datetime.fromisoformat(text)
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


def _list_numbers(values: _Numbers) -> list[int]:
    """Return all steps or members; ValueError if there are more than `_MOST`, or they do not ascend."""
    numbers: list[int] = []
    for value in values:
        first, last, step = (value, value, 1) if isinstance(value, int) else value
        series = range(first, last + 1, step)
        if len(numbers) + len(series) > _MOST:
            raise ValueError(f"it has {len(numbers) + len(series)} steps or members: expected at most {_MOST}")
        numbers += series
    if wrong := next((pair for pair in itertools.pairwise(numbers) if pair[0] >= pair[1]), None):
        raise ValueError(f"its steps or members: expected ascending numbers, found {wrong[1]} after {wrong[0]}")
    return numbers


_FIELD: Final = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


def check_template(template: str, names: set[str]) -> None:
    """Raise ValueError unless the placeholders of ``template``, such as {time:%Y%m%d%H} or {step:03}, are valid.

    ``names`` are the names that placeholders may have.
    """
    for name, form in _FIELD.findall(template):
        valid = r"(?:[^%]|%[YmdHMj])+" if name == "time" else r"(?:0?[1-9])?"
        if name not in names or not re.fullmatch(valid, form):
            raise ValueError(
                f"{template!r} has {{{name}:{form}}}: expected one of {', '.join(sorted(names))}, as in {{step:03}} or "
                "{time:%Y%m%d%H}"
            )
    if re.search("[{}]", _FIELD.sub("", template)):
        raise ValueError(f"{template!r} has a single brace: expected braces only around names, as in {{step:03}}")


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Return ``template``, which was checked, with ``values`` in place of its placeholders."""

    def format_value(match: re.Match[str]) -> str:
        value, form = values[match[1]], match[2] or ""
        if isinstance(value, str):
            return value
        return format(value, form if isinstance(value, int | datetime) else form or "g")

    return _FIELD.sub(format_value, template)


# Messages, which are compared with the expected field before they are decoded.


class MessageValues(msgspec.Struct, frozen=True):
    """Recipe: decode the field of a message; ValueError if the message has no field with these properties."""

    kind: Kind
    time: int  # seconds since 1970
    step: int  # seconds
    length: int | None  # the length of the time range in hours; None if the values have no time range
    member: int | None
    grid: bytes
    across: int  # values in a row
    flags: int  # the scanning flags of the grid

    @property
    def size(self) -> int:
        """The decoded size in bytes."""
        return 4 * parse_integer(self.grid, 7, 4)

    def make(self, raw: bytes) -> bytes:
        if find_message(raw[:8]) != 0 or len(raw) < 16:
            found = f"{len(raw)} bytes that begin with {raw[:8]!r}"
            raise ValueError(f"expected a GRIB message at the offset in the sidecar, found {found}: {_STALE}")
        length = parse_length(raw[:16])
        if length > len(raw) or raw[length:].strip(b"\0\r\n "):
            raise ValueError(f"expected a message of {len(raw)} bytes, as in the sidecar, found {length}: {_STALE}")
        field = self.find(parse_message(raw))
        data = b"".join([raw[at : at + size] for at, size in field.parts])
        return make_recipe(field, self.across, self.flags).make(data)

    def find(self, fields: Sequence[Field | UnshownPart]) -> Field:
        """Return the expected field; ValueError, which describes each of the ``fields``, if it is missing."""
        reasons = []
        for field in fields:
            if isinstance(field, UnshownPart):
                reasons.append(field.reason)
            elif not (differences := self.compare(field)):
                return field
            else:
                reasons.append(differences[0])
        raise ValueError(f"expected the field of the line in the sidecar, found another one: {'; '.join(reasons)}")

    def compare(self, field: Field) -> list[str]:
        """Return texts that describe how a field differs from the expected field; an empty list if it does not."""
        parameter = field.parameter
        kind = Kind.make(parameter)
        pairs: list[tuple[str, Any, Any]] = [("time", self.time, field.time), ("step", self.step, field.step)]
        if not self.kind.is_like(kind):
            pairs.insert(0, ("parameter", self.kind, kind))
        if self.member is not None and TEMPLATES[parameter.template].member:
            pairs.append(("member", self.member, field.member))
        if self.length is not None and parameter.statistic != 255:
            pairs.append(("length in hours", self.length, parameter.length))
        if field.grid != self.grid:
            pairs.append(("grid", self.grid.hex(), field.grid.hex()))
        return [f"expected {name} {expected}, found {found}" for name, expected, found in pairs if expected != found]


_STALE: Final = "the file and its sidecar do not fit: if one was replaced, open the document again"


# The key space.


class FieldPlace(NamedTuple):
    """The place of a field: the URLs of its file and its sidecar, and the members of its line in the sidecar."""

    time: datetime
    step: int
    member: int | None
    level: float | None
    url: str
    sidecar: str
    line: tuple[str, ...]

    def load_sidecar(self, rule: Rule) -> Load:
        """Return the need for the sidecar, whose answer is a `Sidecar`, or None if no sidecar exists."""
        return Load(Span(self.sidecar, optional=True), ParsedIndex(parse_lines, (rule.dialect,)))


class FieldChunks(Chunks):
    """The chunks of a variable: a field for each run, step, member and level.

    ``grid`` may count more runs than the ``runs`` that are shown. ``scan`` is the number of values in a row of the
    variable's grid, and its scanning flags.
    """

    def __init__(
        self, rule: Rule, name: str, grid: ChunkGrid, resolve: Callable[[str | None], str], grids: Sequence[bytes],
        scan: tuple[int, int], runs: int = 0,
    ) -> None:  # fmt: skip
        self._rule = rule
        self._resolve = resolve
        self._variable = rule.variables[name]
        self._section = grids[self._variable.grid]
        self._grid = grid
        self._steps, self._members = rule.steps, rule.members
        self._scan = scan
        self._runs = runs
        dialect = DIALECTS[rule.dialect]
        templates = {name: text for name, text in dialect.templates.items() if rule.number or name != "number"}
        line = {**dialect.default, **templates, **self._variable.line}
        self._line_templates = [line.get(member, "") for member in dialect.members]

    @classmethod
    def make_for_comparison(cls, rule: Rule, name: str, resolve: Callable[[str | None], str]) -> Self:
        """Return the chunks of the variable ``name``, which can be located and compared, but not decoded."""
        counts = [_RUNS, len(rule.steps), len(rule.members), len(rule.variables[name].levels)]
        grid = ChunkGrid(tuple(filter(None, counts)), ENCODINGS[2])
        return cls(rule, name, grid, resolve, [decode_base64(text) for text in rule.grids], (0, 0))

    def list_places(self, run: int) -> Iterator[FieldPlace]:
        """Yield the place of each field of a run."""
        size = math.prod(self._grid.counts[1:])
        places = map(self.locate, range(run * size, (run + 1) * size))
        return (place for place in places if place is not None)

    def locate(self, number: int) -> FieldPlace | None:
        """Return the place of chunk ``number``; None if its run does not have its step."""
        run, step_number, *others = self._grid.coords(number)
        rule, variable, step = self._rule, self._variable, self._steps[step_number]
        run_time = rule.compute_time(run)
        if step > rule.step.last.get(f"{run_time:%H}", step):
            return None
        values: dict[str, Any] = {"time": run_time, "step": step, "begin": variable.compute_begin(step)}
        member = level = None
        if rule.number is not None:
            rank = others.pop(0)
            member = values["number"] = self._members[rank]
        if variable.levels:
            level = values["level"] = variable.levels[others[0]]
        line = tuple(fill_template(text, values) for text in self._line_templates)
        if rule.number is not None and rule.number.names:
            values["number"] = rule.number.names[rank]
        url, sidecar = (self._resolve(fill_template(text, values)) for text in (rule.url, rule.sidecar))
        return FieldPlace(run_time, step, member, level, url, sidecar, line)

    def make_recipe(self, place: FieldPlace) -> MessageValues:
        """Return the recipe that compares the message at ``place`` with the expected field, and decodes the field."""
        variable = self._variable
        kind = variable.message.fill_level(place.level, LEVEL_UNITS.get(variable.level, 0))
        seconds = int((place.time - _EPOCH).total_seconds())
        length = place.step - variable.compute_begin(place.step) if variable.covers else None
        return MessageValues(kind, seconds, 3600 * place.step, length, place.member, self._section, *self._scan)

    def find_entry(self, number: int) -> Steps[Entry | None]:
        place = self.locate(number)
        if place is None:
            return None
        sidecar: Sidecar | None = yield place.load_sidecar(self._rule)
        if sidecar is None:
            yield from self._check_absent(place)
            return None
        if place.line not in sidecar.lines:
            return None
        recipe = self.make_recipe(place)
        return Packed(Span(place.url, *sidecar.lines[place.line]), recipe, recipe.size)

    def list_existing(self) -> Steps[list[Listed] | None]:
        """Return the fields that exist. Raises NotListable if the sidecars of too many files would be read.

        Raises NotYetThere if a field is late, so that a copy of the archive never lacks a field that comes later.
        """
        size = self._runs * math.prod(self._grid.counts[1:])
        files = self._runs * len(self._steps) * max(len(self._members), 1)
        if files > _LISTED:
            raise NotListable(
                f"the fields of {files} files are too many to list: expected at most {_LISTED} files. Each field can "
                "still be read by its key. To copy some runs, give the document their start and stop"
            )
        entries = yield from run_together([self.find_entry(number) for number in range(size)])
        return [Listed(self._grid.tail(number), None) for number in range(size) if entries[number] is not None]

    def _check_absent(self, place: FieldPlace) -> Steps[None]:
        """Raise an error for a missing sidecar if the file exists, or may still come: the run is not yet due."""
        facts: Facts | None = yield Stat(place.url, fresh=True)
        if facts is not None:
            reason = f"expected a sidecar for the existing file {place.url}, found none: only it locates the fields"
            raise ReferenceNotReachable("", place.sidecar, reason)
        due = place.time + self._rule.time.due * HOUR
        if due.timestamp() > time.time():
            run = f"the run of {place.time:%Y-%m-%dT%H}Z is due by {due:%Y-%m-%dT%H}Z"
            raise NotYetThere("", place.url, f"{run}, and this file does not exist yet")


class ValidTimes(Chunks):
    """The chunks of `valid_time`, the sum of time and step: each covers all steps of some runs."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def find_entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        count = _count_runs_per_chunk(self._rule)
        first = int((self._rule.compute_time(number * count) - _EPOCH).total_seconds())
        runs = first + 3600 * self._rule.time.every * np.arange(count, dtype="<i8")
        return Inline(np.add.outer(runs, 3600 * np.array(self._rule.steps, "<i8")).tobytes())


def _count_runs_per_chunk(rule: Rule) -> int:
    """Return the number of runs in a chunk of `valid_time`: fewer if there are many steps."""
    return min(_RUNS_PER_CHUNK, max(_MOST // len(rule.steps), 1))


class RuleKeySpace(ArrayGroup):
    """The keys of an archive, also of runs that became complete after the document was opened."""

    fields: Mapping[str, ChunkGrid] = {}  # chunk grids of the variables, which include later runs

    def lookup(self, key: str) -> Steps[Entry | None]:
        at = find_chunk(self.fields, key)
        if at is not None:
            return (yield from self.chunks_by_path[at.array].find_entry(at.number))
        return (yield from super().lookup(key))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a rule. The key space shows the runs that `count_runs` counts."""
    rule: Rule = yield Load(probe.document(options.max_manifest_bytes), ParsedIndex(Rule.parse, (probe.url,)))
    resolve = make_resolver(options, None if probe.is_in_memory else directory_of(probe.url))
    try:
        runs = yield from count_runs(rule, resolve)
        return _make_keyspace(rule, probe.url, options, resolve, runs)
    except (ValueError, OverflowError) as e:
        raise ManifestError(f"{probe.url}: {e}") from e


def count_runs(rule: Rule, resolve: Callable[[str | None], str]) -> Steps[int]:
    """Return the number of runs that are shown: up to the stop of the rule.

    Without a stop, these are the runs up to the last one that is due, or whose first sidecar exists.
    """
    every = rule.time.every * HOUR
    now = datetime.fromtimestamp(time.time(), UTC)
    count = max(((now if rule.time.stop is None else parse_time(rule.time.stop)) - rule.start) // every + 1, 0)
    if count > _MOST:
        raise ValueError(f"it has {count} runs: expected at most {_MOST}")
    if rule.time.stop is not None:
        return count
    due = min(max((now - rule.time.due * HOUR - rule.start) // every + 1, 0), count)
    names = rule.number.names[:1] if rule.number and rule.number.names else rule.members[:1]
    values = {"step": rule.steps[0], **({"number": names[0]} if names else {})}
    urls = [
        resolve(fill_template(rule.sidecar, {"time": rule.compute_time(run), **values})) for run in range(due, count)
    ]
    answers: Sequence[Facts | None] = (yield tuple(Stat(url, fresh=True) for url in urls)) if urls else ()
    return due + max([number + 1 for number, facts in enumerate(answers) if facts is not None], default=0)


def _make_keyspace(
    rule: Rule, url: str, options: OpenOptions, resolve: Callable[[str | None], str], runs: int
) -> RuleKeySpace:
    grids = [decode_base64(text) for text in rule.grids]
    group = FieldGroup(url, Inline(b"".join(grids)), options.zarr_format)
    grid_fields = _make_fields(grids)
    added_grids = [group.add_grid(field) for field in grid_fields]
    first = int((rule.start - _EPOCH).total_seconds())
    axes = {
        "time": first + 3600 * rule.time.every * np.arange(runs, dtype="<i8"),
        "step": 3600 * np.array(rule.steps, "<i8"),
        **({"number": np.array(rule.members, "<i8")} if rule.number else {}),
    }
    dims = [group.add_coordinate(name, values) for name, values in axes.items()]
    shape = [len(values) for values in axes.values()]
    fields: dict[str, ChunkGrid] = {}
    for name, variable in rule.variables.items():
        grid_dimensions, grid_coordinates, inner = added_grids[variable.grid]
        levels = np.array(variable.levels, "<f8")
        along = [*dims, *([group.add_coordinate(variable.level, levels)] if variable.levels else [])]
        outer = [*shape, *([len(levels)] if variable.levels else [])]
        description = ArrayDescription(
            f"{url}: {name}", (*outer, *inner), (*(1 for _ in outer), *inner), np.dtype("<f4"),
            [*along, *grid_dimensions],
            {**variable.attributes, "coordinates": " ".join(["valid_time", *grid_coordinates])}, fill_value="NaN",
            is_masked=True,
        )  # fmt: skip
        grid = description.grid(options.zarr_format)
        fields[name] = ChunkGrid((_RUNS if rule.time.stop is None else runs, *grid.counts[1:]), grid.encoding)
        scan = inner[-1], get_scan_flags(grid_fields[variable.grid], inner)
        group.add(name, description, FieldChunks(rule, name, fields[name], resolve, grids, scan, runs))
    valid = ArrayDescription(
        f"{url}: valid_time", tuple(shape[:2]), (_count_runs_per_chunk(rule), shape[1]), np.dtype("<i8"), dims[:2],
        ATTRIBUTES["valid_time"],
    )  # fmt: skip
    group.add("valid_time", valid, ValidTimes(rule))
    attributes = {"Conventions": "CF-1.7"}
    space = RuleKeySpace(group.arrays, group.chunks, options.zarr_format, attributes, group.reports)
    space.fields = fields
    return space


def _make_fields(grids: Sequence[bytes]) -> list[Field]:
    """Return a field without values for each of the ``grids``, which follow each other in the source of the group."""
    parameter = Parameter(0, 0, 0, 0, (0, 0), 0, 0, 255, 0, (NO_SURFACE, NO_SURFACE))
    fields, at = [], 0
    for grid in grids:
        fields.append(Field((at, len(grid)), (), parameter, 0, 0, 0, grid, parse_integer(grid, 7, 4)))
        at += len(grid)
    return fields

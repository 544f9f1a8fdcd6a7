"""Archives of GRIB files by rule: a document of a few kB shows all runs, and lists no file. No I/O here.

The document (``FORMATS.md`` specifies it) gives patterns of URLs, the runs, steps and members, and the line of a
sidecar for each variable. A chunk is a field: its look-up reads the sidecar of its file, and the message must be the
requested field. New runs change no document.
"""

from __future__ import annotations

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
from refshard_fs.core.model import Entry, Facts, Inline, Listed, Load, Packed, Parsed, Span, Stat, Steps, run_together
from refshard_fs.errors import ManifestError, NotListable, NotYetThere, ReferenceNotReachable
from refshard_fs.formats.grib2.messages import (
    NO_SURFACE,
    TEMPLATES,
    Field,
    Parameter,
    Unshown,
    find_message,
    parse_integer,
    parse_length,
)
from refshard_fs.formats.grib2.source import (
    ATTRIBUTES,
    LEVEL_UNITS,
    FieldGroup,
    make_recipe,
    parse_message,
    scan_flags,
)
from refshard_fs.references.values import decode_base64, make_resolver
from refshard_fs.security.policy import directory_of

HOUR: Final = timedelta(hours=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = 1 << 20  # runs, steps, members or levels of a document
_LATE: Final = 128  # runs that may be missing at the end of an archive: each is requested when the document is opened
_RUNS: Final = 1 << 31  # the last date of keys in an archive without an end
_LISTED: Final = 1 << 14  # files whose sidecars are read to list fields
_BLOCK: Final = 1 << 10  # most runs in a chunk of `valid_time`
_LINE_BYTES: Final = 400  # bytes of a line of a sidecar in memory


# Sidecars: their lines, and the places of messages.


class Sidecar(NamedTuple):
    """Begin and end of messages by the members that distinguish lines; None is the end of the file.

    The first of equal lines wins: NOAA writes sums twice if two ranges are equal.
    """

    lines: dict[tuple[str, ...], tuple[int, int | None]]

    @property
    def nbytes(self) -> int:
        return _LINE_BYTES * len(self.lines)


class Dialect(NamedTuple):
    """A kind of sidecar: the members of a line, and the templates of some of them (a variable has the others).

    A line without a member has the one in ``default``, or "". ``parse`` returns the members of a line, and the offset
    and the length of its message; the length is None if the next line determines it.
    """

    members: tuple[str, ...]
    given: Mapping[str, str]
    default: Mapping[str, str]
    parse: Callable[[str], tuple[Mapping[str, str], int, int | None]]


_HOURS: Final = {"min": 1 / 60, "hour": 1, "day": 24}
_FORECAST: Final = re.compile(r"(\d+)(?:-(\d+))? (min|hour|day) (?:(\w+) )?(?:fcst|anl)")


def _parse_wgrib2(line: str) -> tuple[dict[str, str], int, None]:
    """Return the members of ``12:34567:d=2026112806:APCP:surface:0-1 day acc fcst:``."""
    _, offset, date, name, level, forecast, *rest = line.split(":")
    more = ":".join(part for part in rest if part and not part.startswith("ENS="))
    found = {"date": date.removeprefix("d="), "name": name, "level": level, "more": more}
    if forecast == "anl":
        return {**found, "process": "", "from": "0", "to": "0"}, int(offset), None
    matched = _FORECAST.fullmatch(forecast)
    if matched is None:
        return {**found, "process": forecast}, int(offset), None
    first, last, unit, process = matched.groups()
    begin, end = (f"{int(number) * _HOURS[unit]:g}" for number in (first, last or first))
    return {**found, "process": process or "", "from": begin, "to": end}, int(offset), None


_FORECASTS: Final = frozenset(["an", "fc", "cf", "pf"])  # steps and members identify these fields


def _parse_ecmwf(line: str) -> tuple[dict[str, str], int, int]:
    """Return the members of a JSON object with ``param``, ``levtype``, ... and ``_offset`` and ``_length``."""
    found = json.loads(line)
    members = {name: str(value) for name, value in found.items()}
    if members.get("type") in _FORECASTS:
        del members["type"]
    return members, int(found["_offset"]), int(found["_length"])


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
    """Return the lines of a sidecar in the dialect ``name``; ValueError if a line has another form."""
    dialect = DIALECTS[name]
    found: list[tuple[tuple[str, ...], int, int | None]] = []
    for line in data.decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        try:
            members, offset, length = dialect.parse(line)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ValueError(f"expected a line of {name}, found {line[:80]!r}") from None
        if offset < 0 or (length is not None and length <= 0):
            raise ValueError(f"expected an offset and a length, found {line[:80]!r}")
        key = tuple(members.get(member, dialect.default.get(member, "")) for member in dialect.members)
        found.append((key, offset, length))
    offsets = sorted({offset for _, offset, _ in found})
    follows = dict(zip(offsets, [*offsets[1:], None], strict=True))
    lines: dict[tuple[str, ...], tuple[int, int | None]] = {}
    for key, offset, length in found:
        lines.setdefault(key, (offset, follows[offset] if length is None else offset + length))
    return Sidecar(lines)


# The document.

_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Numbers = list[_Natural | list[_Natural]]  # numbers, and [first, last, step] of several


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The runs: one each ``every`` hours from ``start`` to ``stop``, or without an end.

    All files of a run exist ``due`` hours after its time.
    """

    start: str
    every: _Positive
    stop: str | None = None
    due: _Natural = 24


class Forecasts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The steps, in hours. ``last`` is the last step of runs, by their hour of the day."""

    values: _Numbers
    last: dict[str, int] = {}


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The members of an ensemble, by number, and their texts in the names of files, if these differ."""

    values: _Numbers
    names: list[str] = []


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The field of a message: discipline, category and number, and [kind, value] of its surfaces.

    A surface without a value has the value of the variable's level.
    """

    parameter: tuple[int, int, int]
    surfaces: tuple[tuple[float, ...], ...] = ()
    statistic: int = 255
    number: int = 0  # the template's `Product.kind`
    axes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, parameter: Parameter) -> Kind:
        """Return the kind of a field."""
        surfaces = tuple((one.kind, one.value()) for one in parameter.surfaces if one.kind != NO_SURFACE.kind)
        numbers = parameter.discipline, parameter.category, parameter.number
        return cls(numbers, surfaces, parameter.statistic, parameter.kind, parameter.axes)

    def __str__(self) -> str:
        numbers = ".".join(map(str, self.parameter))
        surfaces = " and ".join(f"{value:g} of kind {kind:g}" for kind, value in self.surfaces)
        return f"{numbers} at {surfaces or 'no level'} (statistic {self.statistic}, {self.number}, {list(self.axes)})"

    def at(self, level: float | None, unit: int) -> Kind:
        """Return the kind at a ``level``, in a unit that is a power of ten of SI's."""
        surfaces = tuple(one if len(one) == 2 else (one[0], (level or 0) * 10.0**unit) for one in self.surfaces)
        return msgspec.structs.replace(self, surfaces=surfaces)

    def is_like(self, other: Kind) -> bool:
        """Return whether both are equal, except for the rounding of levels."""
        pairs = list(zip(self.surfaces, other.surfaces, strict=False))
        return (
            len(self.surfaces) == len(other.surfaces)
            and all(math.isclose(a, b, rel_tol=1e-9) for one, two in pairs for a, b in zip(one, two, strict=True))
            and msgspec.structs.replace(self, surfaces=()) == msgspec.structs.replace(other, surfaces=())
        )


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A variable: the members of its ``line``, the content of its messages, and the name and values of its levels.

    ``covers``: the hours that a value covers, up to its step: "run" (from the beginning), "last N", or "bucket N" (from
    the last multiple of N hours).
    """

    line: dict[str, str]
    message: Kind
    level: str = ""
    levels: list[float] = []
    covers: str = ""
    grid: _Natural = 0
    attributes: dict[str, Any] = {}

    def begin(self, step: int) -> int:
        """Return the hour at which the values of a step begin."""
        what, _, hours = self.covers.partition(" ")
        match what:
            case "run":
                return 0
            case "last":
                return max(step - int(hours), 0)
            case "bucket":
                return max(step - 1, 0) // int(hours) * int(hours)
        return step


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The document. ``url`` and ``sidecar`` name the file of a run, a step and a member; ``grids`` are sections 3."""

    refshard: Literal["rule"]
    url: str
    sidecar: str
    dialect: Literal["wgrib2", "ecmwf"]
    time: Times
    step: Forecasts
    grids: list[str]
    variables: dict[str, Variable]
    number: Members | None = None

    @classmethod
    def read(cls, data: bytes, where: str) -> Rule:
        """Parse the document in ``data``; ManifestError, which begins with ``where``, if it breaks the format."""
        try:
            rule = msgspec.convert(zarrmeta.loads(data), cls)
            rule.check()
        except (ValueError, OverflowError, msgspec.ValidationError) as e:
            raise ManifestError(f"{where}: {e}") from e
        return rule

    def dumps(self) -> bytes:
        """Return the document as JSON, a line for each variable."""
        head = {name: value for name, value in msgspec.to_builtins(self).items() if name != "variables"}
        lines = [b"%b:%b" % (zarrmeta.dumps(name), msgspec.json.encode(one)) for name, one in self.variables.items()]
        return zarrmeta.dumps(head)[:-1] + b',"variables":{\n' + b",\n".join(lines) + b"\n}}\n"

    def check(self) -> None:
        """Raise ValueError if members contradict each other."""
        names = {"time", "step"} | ({"number"} if self.number else set())
        for template in (self.url, self.sidecar):
            check_template(template, names)
        dialect = DIALECTS[self.dialect]
        taken = {"time", "step", "number", "valid_time", *(one.level for one in self.variables.values())}
        for name, variable in self.variables.items():
            if not is_key(name) or "/" in name or name in taken:
                raise ValueError(f"{name!r} cannot be the name of a variable: it is empty, a path or a coordinate's")
            strange = variable.line.keys() - set(dialect.members)
            if strange:
                raise ValueError(f"the line of {name!r} has {min(strange)!r}: expected one of {dialect.members}")
            for text in variable.line.values():
                check_template(text, names | {"begin"} | ({"level"} if variable.levels else set()))
            if variable.covers and not re.fullmatch(r"run|(?:last|bucket) [1-9]\d{0,3}", variable.covers):
                raise ValueError(f"{name!r} covers {variable.covers!r}: expected 'run', 'last N' or 'bucket N'")
            if variable.grid >= len(self.grids):
                raise ValueError(f"{name!r} has grid {variable.grid}, of {len(self.grids)}")
            numbers = [*variable.levels, *(number for one in variable.message.surfaces for number in one)]
            if not all(map(math.isfinite, numbers)) or not {len(one) for one in variable.message.surfaces} <= {1, 2}:
                raise ValueError(f"{name!r} has levels or surfaces that are not numbers")
            if bool(variable.levels) != bool(variable.level):
                raise ValueError(f"{name!r} has levels without a name, or a name without levels")
        if self.number and self.number.names and len(self.number.names) != len(self.members):
            raise ValueError(f"its {len(self.members)} members have {len(self.number.names)} names")
        if self.time.stop is None and self.time.due > _LATE * self.time.every:
            raise ValueError(f"its runs are due after {self.time.due} hours, in which there are more than {_LATE}")
        if not self.steps or self.start > parse_time(self.time.stop or self.time.start):
            raise ValueError("it has no steps, or no runs")

    @property
    def start(self) -> datetime:
        return parse_time(self.time.start)

    def time_of(self, number: int) -> datetime:
        """Return the time of a run."""
        return self.start + number * self.time.every * HOUR

    @property
    def steps(self) -> list[int]:
        return _list_numbers(self.step.values)

    @property
    def members(self) -> list[int]:
        return _list_numbers(self.number.values) if self.number else []


def parse_time(text: str) -> datetime:
    """Return a time in UTC; ValueError unless ``text`` is one as in ISO 8601."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _list_numbers(values: _Numbers) -> list[int]:
    found: list[int] = []
    for value in values:
        first, last, step = (value, value, 1) if isinstance(value, int) else value
        some = range(first, last + 1, step)
        if len(found) + len(some) > _MOST:
            raise ValueError(f"it has more than {_MOST} steps or members")
        found += some
    if sorted(set(found)) != found:
        raise ValueError("its steps or members do not ascend")
    return found


_FIELD: Final = re.compile(r"\{(\w+)(?::([^{}]*))?\}")


def check_template(template: str, names: set[str]) -> None:
    """Raise ValueError unless the fields of a ``template`` are known: {time:%Y%m%d%H}, {step:03}, {level}."""
    for name, form in _FIELD.findall(template):
        fits = r"(?:[^%]|%[YmdHMj])+" if name == "time" else r"(?:0?[1-9])?"
        if name not in names or not re.fullmatch(fits, form):
            raise ValueError(f"{template!r} has {{{name}:{form}}}: expected one of {sorted(names)}, as {{step:03}}")
    if re.search("[{}]", _FIELD.sub("", template)):
        raise ValueError(f"{template!r} has a brace that belongs to no field")


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Return a checked ``template`` with its fields filled in."""

    def text(match: re.Match[str]) -> str:
        value, form = values[match[1]], match[2] or ""
        if isinstance(value, str):
            return value
        return format(value, form if isinstance(value, int | datetime) else form or "g")

    return _FIELD.sub(text, template)


# A message, read and compared.


class MessageValues(msgspec.Struct, frozen=True):
    """The values of the field in a message of this ``kind``, time, step (seconds), member and ``grid``."""

    kind: Kind
    time: int
    step: int
    length: int | None  # hours that a value covers
    member: int | None
    grid: bytes
    across: int
    flags: int

    @property
    def size(self) -> int:
        """The decoded size in bytes."""
        return 4 * parse_integer(self.grid, 7, 4)

    def make(self, raw: bytes) -> bytes:
        if find_message(raw[:8]) != 0 or len(raw) < 16:
            raise ValueError(f"expected a GRIB message at the offset in the sidecar, found {raw[:8]!r}: {_STALE}")
        length = parse_length(raw[:16])
        if length > len(raw) or raw[length:].strip(b"\0\r\n "):
            raise ValueError(f"expected a message of {len(raw)} bytes, as in the sidecar, found {length}: {_STALE}")
        field = self.find(parse_message(raw))
        data = b"".join([raw[at : at + size] for at, size in field.parts])
        return make_recipe(field, self.across, self.flags).make(data)

    def find(self, fields: Sequence[Field | Unshown]) -> Field:
        """Return the requested field; ValueError, which describes the found fields, if it is missing."""
        reasons = []
        for field in fields:
            if isinstance(field, Unshown):
                reasons.append(field.reason)
            elif not (differences := self.compare(field)):
                return field
            else:
                reasons.append(differences[0])
        raise ValueError(f"the message is of another field than its line in the sidecar: {'; '.join(reasons)}")

    def compare(self, field: Field) -> list[str]:
        """Return the differences of a field from the requested one."""
        parameter = field.parameter
        kind = Kind.of(parameter)
        pairs: list[tuple[str, Any, Any]] = [("time", self.time, field.time), ("step", self.step, field.step)]
        if not self.kind.is_like(kind):
            pairs.insert(0, ("parameter", self.kind, kind))
        if self.member is not None and TEMPLATES[parameter.template].member:
            pairs.append(("member", self.member, field.member))
        if self.length is not None and parameter.statistic != 255:
            pairs.append(("length in hours", self.length, parameter.length))
        if field.grid != self.grid:
            pairs.append(("grid", self.grid.hex(), field.grid.hex()))
        return [f"expected {name} {wanted}, found {found}" for name, wanted, found in pairs if wanted != found]


_STALE: Final = "one of them was replaced"


# The key space.


class FieldPlace(NamedTuple):
    """The place of a field: its file, its sidecar, and the members of its line."""

    time: datetime
    step: int
    member: int | None
    level: float | None
    url: str
    sidecar: str
    line: tuple[str, ...]

    def load(self, rule: Rule) -> Load:
        """Return the need for the sidecar; the answer is None if the sidecar does not exist."""
        return Load(Span(self.sidecar, optional=True), Parsed(parse_lines, (rule.dialect,)))


class FieldChunks(Chunks):
    """The fields of a variable: one for each run, step, member and level."""

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
        given = dialect.given if rule.number else {k: v for k, v in dialect.given.items() if k != "number"}
        line = {**dialect.default, **given, **self._variable.line}
        self._line = [line.get(member, "") for member in dialect.members]

    @classmethod
    def of_rule(cls, rule: Rule, name: str, resolve: Callable[[str | None], str]) -> Self:
        """Return the fields of a rule without grids; they are not decoded."""
        counts = [_RUNS, len(rule.steps), len(rule.members), len(rule.variables[name].levels)]
        grid = ChunkGrid(tuple(filter(None, counts)), ENCODINGS[2])
        return cls(rule, name, grid, resolve, [decode_base64(text) for text in rule.grids], (0, 0))

    def places_of(self, run: int) -> Iterator[FieldPlace]:
        """Yield the place of each field of a run."""
        size = math.prod(self._grid.counts[1:])
        found = map(self.locate, range(run * size, (run + 1) * size))
        return (place for place in found if place is not None)

    def locate(self, number: int) -> FieldPlace | None:
        """Return the place of chunk ``number``; None if its run has no such step."""
        run, place, *others = self._grid.coords(number)
        rule, variable, step = self._rule, self._variable, self._steps[place]
        at = rule.time_of(run)
        if step > rule.step.last.get(f"{at:%H}", step):
            return None
        values: dict[str, Any] = {"time": at, "step": step, "begin": variable.begin(step)}
        member = level = None
        if rule.number is not None:
            rank = others.pop(0)
            member = values["number"] = self._members[rank]
        if variable.levels:
            level = values["level"] = variable.levels[others[0]]
        line = tuple(fill_template(text, values) for text in self._line)
        if rule.number is not None and rule.number.names:
            values["number"] = rule.number.names[rank]
        url, sidecar = (self._resolve(fill_template(text, values)) for text in (rule.url, rule.sidecar))
        return FieldPlace(at, step, member, level, url, sidecar, line)

    def recipe(self, found: FieldPlace) -> MessageValues:
        """Return the recipe that decodes the field and compares its message."""
        variable = self._variable
        kind = variable.message.at(found.level, LEVEL_UNITS.get(variable.level, 0))
        seconds = int((found.time - _EPOCH).total_seconds())
        length = found.step - variable.begin(found.step) if variable.covers else None
        return MessageValues(kind, seconds, 3600 * found.step, length, found.member, self._section, *self._scan)

    def entry(self, number: int) -> Steps[Entry | None]:
        found = self.locate(number)
        if found is None:
            return None
        lines: Sidecar | None = yield found.load(self._rule)
        if lines is None:
            yield from self._check_absent(found)
            return None
        if found.line not in lines.lines:
            return None
        recipe = self.recipe(found)
        return Packed(Span(found.url, *lines.lines[found.line]), recipe, recipe.size)

    def list_existing(self) -> Steps[list[Listed] | None]:
        """Return the fields that exist. NotListable if they are too many, NotYetThere if one of them is late.

        So a copy of the archive never lacks a late field.
        """
        size = self._runs * math.prod(self._grid.counts[1:])
        files = self._runs * len(self._steps) * max(len(self._members), 1)
        if files > _LISTED:
            raise NotListable(
                f"the fields of {files} files are too many to list; each can still be read by its key. To copy some "
                "runs, give the document their start and stop"
            )
        found = yield from run_together([self.entry(number) for number in range(size)])
        return [Listed(self._grid.tail(number), None) for number in range(size) if found[number] is not None]

    def _check_absent(self, found: FieldPlace) -> Steps[None]:
        """Raise an error if a file without a sidecar exists, or is only late."""
        facts: Facts | None = yield Stat(found.url, fresh=True)
        if facts is not None:
            reason = f"it does not exist, but the file {found.url} does: its fields are found only by this sidecar"
            raise ReferenceNotReachable("", found.sidecar, reason)
        due = found.time + self._rule.time.due * HOUR
        if due.timestamp() > time.time():
            run = f"the run of {found.time:%Y-%m-%dT%H}Z is due by {due:%Y-%m-%dT%H}Z"
            raise NotYetThere("", found.url, f"{run}, and this file does not exist yet")


class ValidTimes(Chunks):
    """The sum of time and step, computed for a block of runs."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def entry(self, number: int) -> Steps[Entry | None]:
        yield from ()
        block = _choose_block(self._rule)
        first = int((self._rule.time_of(number * block) - _EPOCH).total_seconds())
        runs = first + 3600 * self._rule.time.every * np.arange(block, dtype="<i8")
        return Inline(np.add.outer(runs, 3600 * np.array(self._rule.steps, "<i8")).tobytes())


def _choose_block(rule: Rule) -> int:
    """Return the number of runs in a chunk of `valid_time`: fewer if there are many steps."""
    return min(_BLOCK, max(_MOST // len(rule.steps), 1))


class RuleKeySpace(ArrayGroup):
    """The keys of an archive. Later runs than the last shown one have keys, too, which are looked up when they are
    read.
    """

    fields: Mapping[str, ChunkGrid] = {}  # grids of the variables, without an end in time

    def lookup(self, key: str) -> Steps[Entry | None]:
        at = find_chunk(self.fields, key)
        if at is not None:
            return (yield from self.chunks_by_path[at.array].entry(at.number))
        return (yield from super().lookup(key))


def open_(probe: Probe, options: OpenOptions) -> Steps[KeySpace]:
    """Open a document. It shows the runs that are due, and later runs up to the last one whose file exists."""
    rule: Rule = yield Load(probe.document(options.max_manifest_bytes), Parsed(Rule.read, (probe.url,)))
    resolve = make_resolver(options, None if probe.is_in_memory else directory_of(probe.url))
    try:
        runs = yield from count_runs(rule, resolve)
        return _keyspace(rule, probe.url, options, resolve, runs)
    except (ValueError, OverflowError) as e:
        raise ManifestError(f"{probe.url}: {e}") from e


def count_runs(rule: Rule, resolve: Callable[[str | None], str]) -> Steps[int]:
    """Return the number of shown runs."""
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
    urls = [resolve(fill_template(rule.sidecar, {"time": rule.time_of(run), **values})) for run in range(due, count)]
    found: Sequence[Facts | None] = (yield tuple(Stat(url, fresh=True) for url in urls)) if urls else ()
    return due + max([place + 1 for place, facts in enumerate(found) if facts is not None], default=0)


def _keyspace(
    rule: Rule, url: str, options: OpenOptions, resolve: Callable[[str | None], str], runs: int
) -> RuleKeySpace:
    grids = [decode_base64(text) for text in rule.grids]
    group = FieldGroup(url, Inline(b"".join(grids)), options.zarr_format)
    holders = _make_fields(grids)
    drawn = [group.add_grid(field) for field in holders]
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
        within, places, inner = drawn[variable.grid]
        levels = np.array(variable.levels, "<f8")
        along = [*dims, *([group.add_coordinate(variable.level, levels)] if variable.levels else [])]
        outer = [*shape, *([len(levels)] if variable.levels else [])]
        described = ArrayDescription(
            f"{url}: {name}", (*outer, *inner), (*(1 for _ in outer), *inner), np.dtype("<f4"), [*along, *within],
            {**variable.attributes, "coordinates": " ".join(["valid_time", *places])}, fill_value="NaN", is_masked=True,
        )  # fmt: skip
        grid = described.grid(options.zarr_format)
        fields[name] = ChunkGrid((_RUNS if rule.time.stop is None else runs, *grid.counts[1:]), grid.encoding)
        scan = inner[-1], scan_flags(holders[variable.grid], inner)
        group.add(name, described, FieldChunks(rule, name, fields[name], resolve, grids, scan, runs))
    valid = ArrayDescription(
        f"{url}: valid_time", tuple(shape[:2]), (_choose_block(rule), shape[1]), np.dtype("<i8"), dims[:2],
        ATTRIBUTES["valid_time"],
    )  # fmt: skip
    group.add("valid_time", valid, ValidTimes(rule))
    attributes = {"Conventions": "CF-1.7"}
    space = RuleKeySpace(group.arrays, group.chunks, options.zarr_format, attributes, group.reports)
    space.fields = fields
    return space


def _make_fields(grids: Sequence[bytes]) -> list[Field]:
    """Return fields that have only these sections 3, which lie one after the other."""
    parameter = Parameter(0, 0, 0, 0, (0, 0), 0, 0, 255, 0, (NO_SURFACE, NO_SURFACE))
    found, at = [], 0
    for grid in grids:
        found.append(Field((at, len(grid)), (), parameter, 0, 0, 0, grid, parse_integer(grid, 7, 4)))
        at += len(grid)
    return found

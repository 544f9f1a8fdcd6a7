"""Make rules from files of an archive, and compare rules with an archive."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from refshard_fs.core.model import Facts, Load, Parsed, Span, Stat, Steps, run_together
from refshard_fs.errors import SourceNotReachable
from refshard_fs.formats.grib2.library import ParameterName
from refshard_fs.formats.grib2.messages import Field, Grib, Unshown, parse_length
from refshard_fs.formats.grib2.rule import (
    DIALECTS,
    FieldChunks,
    FieldPlace,
    Kind,
    Rule,
    Sidecar,
    Variable,
    fill_template,
    parse_lines,
)
from refshard_fs.formats.grib2.source import LEVEL_UNITS, scan_messages

_ATTRIBUTES: Final = ("long_name", "units", "standard_name")
_BUCKETS: Final = (3, 6, 12, 24)  # hours
_LEVEL_MEMBERS: Final = {"wgrib2": "level", "ecmwf": "levelist"}


class Sample(NamedTuple):
    """A file of an archive: its run, step and member."""

    time: datetime
    step: int
    member: int | None = None


def choose_samples(rule: Rule, run: int) -> list[Sample]:
    """Return the first file of a run, and three from the middle on: their steps distinguish the time ranges of
    values.
    """
    time, steps = (
        rule.time_of(run),
        [step for step in rule.steps if step <= rule.step.last.get(f"{rule.time_of(run):%H}", step)],
    )
    middle = len(steps) // 3
    chosen = dict.fromkeys([steps[0], *steps[middle : middle + 4]])
    return [Sample(time, step, rule.members[-1] if rule.members else None) for step in chosen]


class _Found(NamedTuple):
    """A field of a sample, and the members of its line that distinguish variables."""

    step: int
    line: tuple[tuple[str, str], ...]
    field: Field
    named: ParameterName

    @property
    def begin(self) -> int:
        """The hour at which its value begins."""
        parameter = self.field.parameter
        return self.step if parameter.statistic == 255 else self.step - parameter.length

    @property
    def unit(self) -> int:
        return LEVEL_UNITS.get(self.named.level, 0)


def make_urls(rule: Rule, sample: Sample, resolve: Callable[[str | None], str]) -> tuple[str, str]:
    """Return the URLs of a file and of its sidecar."""
    values: dict[str, Any] = {"time": sample.time, "step": sample.step}
    if rule.number is not None and sample.member is not None:
        names = rule.number.names
        values["number"] = names[rule.members.index(sample.member)] if names else sample.member
    url, sidecar = (resolve(fill_template(text, values)) for text in (rule.url, rule.sidecar))
    return url, sidecar


def add_variables(rule: Rule, samples: Sequence[Sample], resolve: Callable[[str | None], str]) -> Steps[Rule]:
    """Return a rule with the variables and grids of some files, instead of its own."""
    found: list[_Found] = []
    for fields in (yield from run_together([_read(rule, sample, resolve) for sample in samples])):
        found += fields
    grids: dict[bytes, int] = {}
    for one in found:
        grids.setdefault(one.field.grid, len(grids))
    alike: dict[Any, list[_Found]] = {}
    for one in found:
        kind = Kind.of(one.field.parameter)
        alike.setdefault((one.line, kind, one.field.grid), []).append(one)
    single = [variable for some in alike.values() for variable in _split_by_range(some, grids)]
    named_by: dict[str, Variable] = {}
    for name, variable in _join_levels(rule.dialect, single):
        named_by[_choose_name(name, variable, named_by)] = variable
    return msgspec.structs.replace(rule, grids=[base64.b64encode(grid).decode() for grid in grids], variables=named_by)


def _read(rule: Rule, sample: Sample, resolve: Callable[[str | None], str]) -> Steps[list[_Found]]:
    """Return the fields of a file that its sidecar names."""
    url, sidecar = make_urls(rule, sample, resolve)
    facts: Facts | None
    lines: Sidecar | None
    load = Load(Span(sidecar, optional=True), Parsed(parse_lines, (rule.dialect,)))
    facts, lines = yield Stat(url, fresh=True), load
    if facts is None or facts.size is None or lines is None:
        raise SourceNotReachable(f"expected a file and a sidecar, found none at {url if facts is None else sidecar}")
    by_offset: dict[int, list[tuple[str, ...]]] = {}
    for key, (start, _) in lines.lines.items():
        by_offset.setdefault(start, []).append(key)
    grib = Grib(url, Span(url, 0, facts.size), facts.size, b"")
    scan = yield from scan_messages(grib, sorted(by_offset))
    dialect = DIALECTS[rule.dialect]
    starts = sorted(by_offset)
    found = []
    taken = dict.fromkeys(starts, 0)
    for field in scan.found:
        if isinstance(field, Unshown):
            continue
        start = max(at for at in starts if at <= field.parts[0][0])
        keys = by_offset[start]
        key = keys[min(taken[start], len(keys) - 1)]
        taken[start] += 1
        line = {name: value for name, value in zip(dialect.members, key, strict=True) if name not in dialect.given}
        line = {name: value for name, value in line.items() if value}
        found.append(_Found(sample.step, tuple(line.items()), field, scan.names[field.parameter]))
    return found


def _split_by_range(alike: Sequence[_Found], grids: Mapping[bytes, int]) -> list[tuple[_Found, Variable]]:
    """Return a variable for each relation between steps and time ranges of equal fields."""
    first = alike[0]
    kind = Kind.of(first.field.parameter)
    text = {name: value for name, value in first.named.attributes.items() if name in _ATTRIBUTES}
    variable = Variable(dict(first.line), kind, grid=grids[first.field.grid], attributes=text)
    if kind.statistic == 255:
        return [(first, variable)]
    begins: dict[int, set[int]] = {}
    for one in alike:
        begins.setdefault(one.step, set()).add(one.begin)
    lasts = {step - begin for step, some in begins.items() for begin in some if step > begin}
    ways = ["run", *(f"last {hours}" for hours in sorted(lasts)), *(f"bucket {hours}" for hours in _BUCKETS)]
    left = {(step, begin) for step, some in begins.items() for begin in some}
    found = []
    for way in ways:
        candidate = msgspec.structs.replace(variable, covers=way)
        said = {(step, candidate.begin(step)) for step in begins}
        if said <= {(step, begin) for step, some in begins.items() for begin in some} and said & left:
            found.append((first, candidate))
            left -= said
    return found


def _join_levels(dialect: str, single: Sequence[tuple[_Found, Variable]]) -> list[tuple[str, Variable]]:
    """Return the variables by name; variables that differ only in their level become one with levels."""
    member = _LEVEL_MEMBERS[dialect]
    groups: dict[Any, list[tuple[float, _Found, Variable]]] = {}
    for found, variable in single:
        level = found.field.parameter.surfaces[0].value(found.unit)
        text = variable.line.get(member, "")
        template = text.replace(f"{level:g}", "{level}", 1)
        rest = tuple(item for item in variable.line.items() if item[0] != member)
        kind = msgspec.structs.replace(variable.message, surfaces=variable.message.surfaces[1:])
        key = (found.named.level, template, rest, kind, variable.covers, variable.grid)
        groups.setdefault(key, []).append((level, found, variable))
    result = []
    for (name, template, *_), some in groups.items():
        levels = {level: variable for level, _, variable in some}
        if len(levels) == 1 or "{level}" not in template:
            result += [(found.named.name, variable) for _, found, variable in some]
            continue
        found, variable = some[0][1:]
        falling = sorted(levels, reverse=name.startswith("isobaric"))
        surfaces = ((variable.message.surfaces[0][0],), *variable.message.surfaces[1:])
        message = msgspec.structs.replace(variable.message, surfaces=surfaces)
        line = {**variable.line, member: template}
        result.append((found.named.name, msgspec.structs.replace(
            variable, line=line, message=message, level=name, levels=falling)))  # fmt: skip
    return result


def _choose_name(name: str, variable: Variable, taken: Mapping[str, Variable]) -> str:
    """Return an unused name for a variable: with its level, its time range, and a number."""
    kind = (
        [f"{value:g}" for _, value in variable.message.surfaces if value] if not variable.levels else [variable.level]
    )
    parts = [name, *kind[:1], *([variable.covers.replace(" ", "")] if variable.covers else [])]
    names = ["_".join(parts[:count]) for count in range(1, len(parts) + 1)]
    names += [f"{names[-1]}_{number}" for number in range(1, len(taken) + 2)]
    return next(one for one in names if one not in taken)


# Compare a rule with a run.


class Comparison(msgspec.Struct, frozen=True):
    """The differences of a run and a rule.

    ``absent`` are URLs of missing sidecars, ``unnamed`` lines of no variable, and ``unfound`` variables without a line.
    ``misplaced`` has, by variable, how its message differs from the expected field.
    """

    fields: int
    absent: tuple[str, ...]
    unnamed: tuple[str, ...]
    unfound: tuple[str, ...]
    misplaced: Mapping[str, str]

    @property
    def is_same(self) -> bool:
        """Whether each variable is found, with the expected message."""
        return not self.absent and not self.unfound and not self.misplaced


def compare_run(rule: Rule, run: int, resolve: Callable[[str | None], str]) -> Steps[Comparison]:
    """Compare a run: read all of its sidecars, and the head of one message of each variable."""
    fields = {name: FieldChunks.of_rule(rule, name, resolve) for name in rule.variables}
    places = {name: list(chunks.places_of(run)) for name, chunks in fields.items()}
    loads = {place.sidecar: place.load(rule) for some in places.values() for place in some}
    answers: Sequence[Sidecar | None] = yield tuple(loads.values())
    sidecars = dict(zip(loads, answers, strict=True))
    known = {url: sidecar.lines for url, sidecar in sidecars.items() if sidecar is not None}
    there = {name: [p for p in some if p.line in known.get(p.sidecar, {})] for name, some in places.items()}
    lines = {url: set(some) for url, some in known.items()}
    for some in there.values():
        for place in some:
            lines[place.sidecar].discard(place.line)
    unnamed = dict.fromkeys(" ".join(filter(None, line)) for some in lines.values() for line in sorted(some))
    last = {name: some[-1] for name, some in there.items() if some}
    heads = [
        _find_differences(fields[name], place, known[place.sidecar][place.line][0]) for name, place in last.items()
    ]
    found = yield from run_together(heads)
    return Comparison(
        sum(map(len, there.values())),
        tuple(url for url, sidecar in sidecars.items() if sidecar is None),
        tuple(unnamed),
        tuple(name for name, some in there.items() if not some),
        {name: reason for name, reason in zip(last, found, strict=True) if reason},
    )


def _find_differences(chunks: FieldChunks, place: FieldPlace, start: int) -> Steps[str]:
    """Return the differences of the message at ``start`` from the expected field; empty if there are none."""
    facts: Facts | None = yield Stat(place.url)
    if facts is None or facts.size is None:
        return f"{place.url} does not exist"
    try:
        grib = Grib(place.url, Span(place.url, 0, facts.size), facts.size, b"")
        yield from grib.read([start])
        length = parse_length(grib.read_window(start)[:16])
        chunks.recipe(place).find((yield from grib.read_fields(start, length)))
    except ValueError as e:
        return str(e)
    return ""

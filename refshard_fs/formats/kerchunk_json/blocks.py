"""A JSON reference set read piece by piece: never one object in memory, whatever its size. No I/O here.

The text is cut into blocks between two members. Compact blocks become columns at once (`json_scan`); all others go
through a JSON reader, one by one. A cut may be a false one, within a text or a nested value: then the block does not
end there as JSON, and is read again with what follows it. So nothing is taken that is not certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from refshard_fs.errors import ManifestError
from refshard_fs.references.builder import ReferenceBuilder

BLOCK: Final = 1 << 20  # bytes of a block,
PART: Final = 1 << 16  # bytes in which the end of a value is looked for
LONGEST: Final = 1 << 30  # bytes of one member
TRIES: Final = 8  # places where "refs" seems to begin: beyond them, all is read at once
SPECIAL: Final = ("version", "templates", "gen", "refs", "refshard")

_CUT = re.compile(rb'[\]"}]\s*,\s*"')
_SPACE = re.compile(rb"[ \t\r\n]*")
_REFS_MEMBER = re.compile(rb'"refs"[ \t\r\n]*:[ \t\r\n]*\{')
_SPECIAL: Final = [name.encode() for name in SPECIAL]
_COMPACT = re.compile(rb'"(?:[^"\\]|\\.)*": ?(?:\["[^"]*"[],]|")')
_REFS = re.compile(rb',[ \t\r\n]*(?="refs"[ \t\r\n]*:[ \t\r\n]*\{)')
_LAX = json.JSONDecoder(strict=False)


class _Short(Exception):
    """The text so far ends within a member."""


class Reader:
    """Reads one document: `feed` it, then `finish`. ``where`` names it in errors, all of which are ManifestErrors.

    After that, ``top`` and ``refs`` hold the members of the document and of its ``refs`` object (None: there is none),
    and ``header`` the members ``version``, ``templates``, ``gen``, ``refshard`` (and ``refs``, if no object).
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._text = b""
        self._at = 0  # what lies before it has been read
        self._before = 0  # bytes of the document before _text
        self._state = "start"  # then "first", "next" or "member" (what may come: or the end, a comma, none) and "end"
        self._wanted = 0  # bytes that there must be for another try
        self.top = ReferenceBuilder(where)
        self.refs: ReferenceBuilder | None = None
        self.header: dict[str, Any] = {}
        self._within_refs = False

    def feed(self, data: bytes | memoryview) -> None:
        """Read on in ``data``, the next bytes of the document."""
        self._before += self._at
        self._text = b"".join((memoryview(self._text)[self._at :], data))
        self._at = 0
        if len(self._text) > max(BLOCK, self._wanted):
            self._run(final=False)

    def finish(self) -> None:
        """Read what is left: the document has ended."""
        self._run(final=True)
        if self._state != "end":
            raise self._ended_early()
        self._text = b""

    # ------------------------------------------------------------------ the grammar around members

    def _run(self, *, final: bool) -> None:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            left = len(self._text) - self._at
            if not left or (not final and left < max(BLOCK, self._wanted)):
                return
            sign = self._text[self._at : self._at + 1]
            match self._state, sign:
                case "start", _:
                    self._start()
                case "first" | "member", b'"':
                    try:
                        self._members(final=final)
                    except _Short:
                        if final:
                            raise self._ended_early() from None
                        if left > LONGEST:
                            raise self._wrong("a member of it is too long") from None
                        self._wanted = 2 * left
                        return
                    self._wanted = 0
                case "first" | "next", b"}":
                    self._at += 1
                    self._close()
                case "next", b",":
                    self._at += 1
                    self._state = "member"
                case _:
                    raise self._wrong(f"{sign!r} stands where it cannot")

    def _start(self) -> None:
        if self._text.startswith(b"\xef\xbb\xbf", self._at) and self._before + self._at == 0:
            self._at = 3
        elif self._text.startswith(b"{", self._at):
            self._at += 1
            self._state = "first"
        else:
            raise self._wrong("it does not begin with {")

    def _close(self) -> None:
        self._state = "next" if self._within_refs else "end"
        self._within_refs = False

    def _ended_early(self) -> ManifestError:
        end = self._before + len(self._text)
        return ManifestError(
            f"{self._where} is not JSON: it ends too early, after {end} bytes. Was it written to its end?"
        )

    def _wrong(self, reason: str) -> ManifestError:
        return ManifestError(f"{self._where} is not JSON: {reason}, at byte {self._before + self._at}")

    # ------------------------------------------------------------------ members

    @property
    def _into(self) -> ReferenceBuilder:
        return self.refs if self._within_refs and self.refs is not None else self.top

    def _members(self, *, final: bool) -> None:
        """Read on from the beginning of a member; `_Short` if there is not enough text."""
        refs = None if self._within_refs else _REFS_MEMBER.match(self._text, self._at)
        if refs is not None:
            self.refs = ReferenceBuilder(self._where)
            self.header.pop("refs", None)
            self._within_refs, self._state, self._at = True, "first", refs.end()
            return
        end = self._cut(self._at + BLOCK)
        if end is None:
            self._slowly(final=final)
        elif self._add_block(end):
            self._advance(end)
        else:
            self._slowly(final=final, first=end)

    def _add_block(self, end: int) -> bool:
        """Take what comes before ``end`` as compact members, if its beginning looks like that, and it is."""
        if _COMPACT.match(self._text, self._at, end) is None:
            return False
        block = memoryview(self._text)[self._at : end]
        return self._into.add_block(block, () if self._within_refs else _SPECIAL)

    def _advance(self, end: int) -> None:
        self._at = end
        self._state = "next"

    def _cut(self, limit: int) -> int | None:
        """Return the end of the last value before ``limit`` (as it seems), or None if there is none."""
        begin = max(self._at, min(limit, len(self._text)) - PART)
        for pattern in (b'],"', b'], "', b'","', b'", "'):
            found = self._text.rfind(pattern, begin, limit)
            if found >= 0:
                return found + 1
        for match in _CUT.finditer(self._text, begin, limit):
            found = match.start()
        return found + 1 if found >= 0 else None

    def _slowly(self, *, final: bool, first: int | None = None) -> None:
        """Read members with a JSON reader: up to ``first``, or as much more as it takes to end one."""
        end, size = first, PART
        if not self._within_refs and self._before_refs(len(self._text) if end is None else end):
            return
        while True:
            if end is None:
                found = _CUT.search(self._text, self._at + size)
                end = found.start() + 1 if found else None
            if end is None:
                break
            try:
                self._read(end)
            except _Short:
                size, end = 2 * (end - self._at), None
            else:
                return
        if not final:
            raise _Short
        self._read(len(self._text))

    def _before_refs(self, end: int) -> bool:
        """Read the members before one that is ``"refs"``, and no further; False if there seems to be none."""
        if self._text.find(b'"refs"', self._at, end) < 0:
            return False
        for match in islice(_REFS.finditer(self._text, self._at, end), TRIES):
            try:
                members = msgspec.json.decode(b"{" + self._text[self._at : match.start()] + b"}")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self.take(members)
            self._advance(match.start())
            return True
        return False

    def _read(self, end: int) -> None:
        text = b"{" + self._text[self._at : end] + b"}"
        try:
            members = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            # Which is also said of half a surrogate pair that ends the text.
            if "truncated" in str(e) and b"\\u" not in text[-12:]:
                raise _Short from None
            self._read_lax(text, end)
        else:
            self.take(members)
            self._advance(end)

    def _read_lax(self, text: bytes, end: int) -> None:
        """Read what only lenient readers take (NaN, half a surrogate pair), or an object that ends in between."""
        try:
            string = text.decode()
            members, stop = _LAX.raw_decode(string)
        except json.JSONDecodeError as e:
            if e.pos >= len(string) - 1 or e.msg.startswith("Unterminated string"):
                raise _Short from None
            self._at += len(string[: e.pos].encode()) - 1
            raise self._wrong(e.msg) from None
        except UnicodeDecodeError as e:
            raise self._wrong(f"it is not UTF-8: {e.reason}") from None
        except RecursionError:
            raise self._wrong("it nests too deep") from None
        self.take(members)
        if stop == len(string):
            self._advance(end)
        else:  # the brace that ended it is the document's own
            self._at += len(string[:stop].encode()) - 1
            self._close()

    def take(self, members: Mapping[Any, Any]) -> None:
        """Take members of the document as Python values."""
        if not self._within_refs and not members.keys().isdisjoint(SPECIAL):
            rest = dict(members)
            for name in SPECIAL:
                if name not in rest:
                    continue
                value = rest.pop(name)
                self.header[name] = value
                if name == "refs":
                    self.refs = None
                    if isinstance(value, Mapping):
                        self.refs = ReferenceBuilder(self._where)
                        self.refs.add_members(value)
                        del self.header[name]
            members = rest
        self._into.add_members(members)

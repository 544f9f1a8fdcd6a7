"""Parse a JSON reference set block by block, so that the whole document is never in memory as objects. No I/O here.

The text is cut into blocks between two members. numpy parses a block of references in compact JSON as columns
(`references.json_scan`). A JSON reader parses other blocks as objects. A cut may be wrong, because it lies within a
text or a nested value. Then the block is not complete JSON, and it is parsed again together with the text after it.
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

BLOCK: Final = 1 << 20  # bytes of a block
PART: Final = 1 << 16  # bytes before the end of a block in which the end of a value is searched
LONGEST: Final = 1 << 30  # the most bytes of a member
TRIES: Final = 8  # how many places that look like the beginning of "refs" are tried
SPECIAL: Final = ("version", "templates", "gen", "refs", "refshard")  # members of a document that are not keys

_CUT = re.compile(rb'[\]"}]\s*,\s*"')  # the end of a value, and the beginning of the next key
_SPACE = re.compile(rb"[ \t\r\n]*")
_REFS_MEMBER = re.compile(rb'"refs"[ \t\r\n]*:[ \t\r\n]*\{')
_SPECIAL: Final = [name.encode() for name in SPECIAL]
_COMPACT = re.compile(rb'"(?:[^"\\]|\\.)*": ?(?:\["[^"]*"[],]|")')  # a member that numpy may be able to parse
_REFS = re.compile(rb',[ \t\r\n]*(?="refs"[ \t\r\n]*:[ \t\r\n]*\{)')
_LAX = json.JSONDecoder(strict=False)  # accepts control characters in texts
# The text that may come next in a document, by the state of the reader; for errors.
_EXPECTED: Final = {"first": "a member or }", "member": "a member", "next": "a comma or }", "end": "no more text"}


class _IncompleteMember(Exception):
    """The text that was fed ends within a member."""


class Reader:
    """Parse a document: call `feed` with its bytes, then `finish`. ManifestError names it as ``where``.

    Afterwards ``refs`` holds the members of the object "refs" (None without one), and ``top`` the other members of the
    document, except those in ``header``: version, templates, gen, refshard, and refs if it is not an object.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._text = b""
        self._at = 0  # position in _text up to which it is parsed
        self._before = 0  # bytes of the document before _text
        # The name of the text that may come next: at "start" the document, at "first" a member or the end of an object,
        # at "next" a comma or the end of an object, at "member" a member, at "end" nothing.
        self._state = "start"
        self._needed = 0  # bytes of text that are collected before an incomplete member is parsed again
        self.top = ReferenceBuilder(where)
        self.refs: ReferenceBuilder | None = None
        self.header: dict[str, Any] = {}
        self._within_refs = False

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the document, and parse the complete blocks."""
        self._before += self._at
        self._text = b"".join((memoryview(self._text)[self._at :], data))
        self._at = 0
        if len(self._text) > max(BLOCK, self._needed):
            self._parse_blocks(final=False)

    def finish(self) -> None:
        """Parse the rest of the document; ManifestError if it is not complete."""
        self._parse_blocks(final=True)
        if self._state != "end":
            raise self._make_end_error()
        self._text = b""

    def _parse_blocks(self, *, final: bool) -> None:
        """Parse blocks as long as there is enough text; if ``final``, parse all of it."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            left = len(self._text) - self._at
            if not left or (not final and left < max(BLOCK, self._needed)):
                return
            sign = self._text[self._at : self._at + 1]
            match self._state, sign:
                case "start", _:
                    self._open_document()
                case "first" | "member", b'"':
                    try:
                        self._read_block(final=final)
                    except _IncompleteMember:
                        if final:
                            raise self._make_end_error() from None
                        if left > LONGEST:
                            raise self._make_error(
                                f"expected members of at most {LONGEST} bytes, found a longer one"
                            ) from None
                        self._needed = 2 * left
                        return
                    self._needed = 0
                case "first" | "next", b"}":
                    self._at += 1
                    self._close_object()
                case "next", b",":
                    self._at += 1
                    self._state = "member"
                case _:
                    raise self._make_error(f"expected {_EXPECTED[self._state]}, found {sign.decode('latin-1')!r}")

    def _open_document(self) -> None:
        """Parse the brace with which the document begins, or a byte order mark before this brace."""
        if self._text.startswith(b"\xef\xbb\xbf", self._at) and self._before + self._at == 0:
            self._at = 3
        elif self._text.startswith(b"{", self._at):
            self._at += 1
            self._state = "first"
        else:
            raise self._make_error(f"expected {{ at its beginning, found {self._text[self._at : self._at + 20]!r}")

    def _close_object(self) -> None:
        """Note the end of the object "refs", or of the document."""
        self._state = "next" if self._within_refs else "end"
        self._within_refs = False

    def _make_end_error(self) -> ManifestError:
        end = self._before + len(self._text)
        return ManifestError(
            f"{self._where} is not JSON: it ends too early, after {end} bytes. Was it written to the end?"
        )

    def _make_error(self, reason: str) -> ManifestError:
        return ManifestError(f"{self._where} is not JSON: {reason}, at byte {self._before + self._at}")

    @property
    def _builder(self) -> ReferenceBuilder:
        """The builder that takes the members of the object that is being parsed."""
        return self.refs if self._within_refs and self.refs is not None else self.top

    def _read_block(self, *, final: bool) -> None:
        """Parse a block, which begins with a member. Raise `_IncompleteMember` if there is not enough text."""
        refs = None if self._within_refs else _REFS_MEMBER.match(self._text, self._at)
        if refs is not None:
            self.refs = ReferenceBuilder(self._where)
            self.header.pop("refs", None)
            self._within_refs, self._state, self._at = True, "first", refs.end()
            return
        end = self._find_cut(self._at + BLOCK)
        if end is None:
            self._read_members(final=final)
        elif self._add_block(end):
            self._mark_parsed(end)
        else:
            self._read_members(final=final, first=end)

    def _add_block(self, end: int) -> bool:
        """Parse the text before ``end`` as columns. Return False if it is not compact JSON of references."""
        if _COMPACT.match(self._text, self._at, end) is None:
            return False
        block = memoryview(self._text)[self._at : end]
        return self._builder.add_block(block, () if self._within_refs else _SPECIAL)

    def _mark_parsed(self, end: int) -> None:
        """Mark the text before ``end`` as parsed: a member ends there."""
        self._at = end
        self._state = "next"

    def _find_cut(self, limit: int) -> int | None:
        """Return the position after the last text before ``limit`` that may end a value; None if there is none."""
        begin = max(self._at, min(limit, len(self._text)) - PART)
        for pattern in (b'],"', b'], "', b'","', b'", "'):
            found = self._text.rfind(pattern, begin, limit)
            if found >= 0:
                return found + 1
        for match in _CUT.finditer(self._text, begin, limit):
            found = match.start()
        return found + 1 if found >= 0 else None

    def _read_members(self, *, final: bool, first: int | None = None) -> None:
        """Parse members with a JSON reader: up to ``first``, a likely end of a member, or else up to a later end."""
        end, size = first, PART
        if not self._within_refs and self._read_before_refs(len(self._text) if end is None else end):
            return
        while True:
            if end is None:
                found = _CUT.search(self._text, self._at + size)
                end = found.start() + 1 if found else None
            if end is None:
                break
            try:
                self._read_json(end)
            except _IncompleteMember:
                size, end = 2 * (end - self._at), None
            else:
                return
        if not final:
            raise _IncompleteMember
        self._read_json(len(self._text))

    def _read_before_refs(self, end: int) -> bool:
        """Parse the members before a member "refs", which is parsed in blocks. Return False if there is none."""
        if self._text.find(b'"refs"', self._at, end) < 0:
            return False
        for match in islice(_REFS.finditer(self._text, self._at, end), TRIES):
            try:
                members = msgspec.json.decode(b"{" + self._text[self._at : match.start()] + b"}")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            self.add_members(members)
            self._mark_parsed(match.start())
            return True
        return False

    def _read_json(self, end: int) -> None:
        """Parse the text before ``end`` as members. Raise `_IncompleteMember` if it ends within a member."""
        text = b"{" + self._text[self._at : end] + b"}"
        try:
            members = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            # The same message appears if half a surrogate pair ends the text.
            if "truncated" in str(e) and b"\\u" not in text[-12:]:
                raise _IncompleteMember from None
            self._read_lax(text, end)
        else:
            self.add_members(members)
            self._mark_parsed(end)

    def _read_lax(self, text: bytes, end: int) -> None:
        """Parse members that msgspec refuses: with NaN or half a surrogate pair, or followed by the object's end."""
        try:
            string = text.decode()
            members, stop = _LAX.raw_decode(string)
        except json.JSONDecodeError as e:
            if e.pos >= len(string) - 1 or e.msg.startswith("Unterminated string"):
                raise _IncompleteMember from None
            self._at += len(string[: e.pos].encode()) - 1
            raise self._make_error(e.msg) from None
        except UnicodeDecodeError as e:
            raise self._make_error(f"expected UTF-8, found other bytes ({e.reason})") from None
        except RecursionError:
            raise self._make_error("its values are nested too deeply: expected fewer levels") from None
        self.add_members(members)
        if stop == len(string):
            self._mark_parsed(end)
        else:  # the object ends before the brace that was appended to its text
            self._at += len(string[:stop].encode()) - 1
            self._close_object()

    def add_members(self, members: Mapping[Any, Any]) -> None:
        """Add members of the object that is being parsed; their values are Python objects."""
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
        self._builder.add_members(members)

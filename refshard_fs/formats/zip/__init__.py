"""Recognise ZIP archives, whose members are keys, by the signature of a member, or of the end of an empty archive."""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

MEMBER = b"PK\3\4"
END = b"PK\5\6"


FORMAT = Format("zip", begins_with(MEMBER, END), "refshard_fs.formats.zip.source")

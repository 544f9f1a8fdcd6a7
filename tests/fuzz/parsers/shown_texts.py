"""Sanitize texts: the result has no control characters and no secrets, and takes little time."""

from __future__ import annotations

from contextlib import nullcontext as set_up

from refshard_fs.errors import (
    LONGEST,
    ManifestError,
    ReferenceNotReachable,
    contains_credentials,
    escape_controls,
    redact,
    sanitize,
)

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    http:// :// @ : ? & ; = # user:HUSH@ ?token=HUSH &sig=HUSH &X-Amz-Signature=HUSH ;key=HUSH api_key= apikey= auth=
    jwt= pwd= sessionid= ' " ( ) [ ] - \x1b[31m \xc2\x9b \xe2\x80\xae \xd8\x9c \x07 \x7f {{ }}
    """.split()
)


def make_seeds() -> list[bytes]:
    texts = ["https://h/x?a=1&token=HUSH", "'k' at s3://me:HUSH@b/k is gone", "plain", "a\x1b[31mb \u202e", "x" * 5000]
    return [text.encode() for text in texts]


def check_input(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    shown = sanitize(text)
    assert all(character.isprintable() or character.isspace() or ord(character) > 0xA0 for character in set(shown))
    assert not set(map(chr, [*range(0x20), *range(0x7F, 0xA0)])).intersection(shown)
    assert escape_controls(shown) == shown
    assert len(shown) < 12 * LONGEST
    if redact(text) == text:
        assert "?token=HUSH" not in text
    else:
        assert contains_credentials(text.encode()) or len(text) > LONGEST or ":" in text
    assert str(ManifestError(text)) == shown
    assert text[:20] == "" or str(ReferenceNotReachable("k", text, text))

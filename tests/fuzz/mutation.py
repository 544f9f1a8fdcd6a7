"""Make nearly valid inputs. Each depends only on the seeds and a number, so that it can be made again."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final, Literal

__all__ = ["Mutator"]

LONGEST: Final = 1 << 16  # bytes of an input
FORMS: Final = 1 << 40  # numbers of inputs for one seed of the generator

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z_]+|\s+|.', re.DOTALL)
# Values near the limits of integers, which parsers of headers and indexes are likely to mistreat.
_NUMBERS: Final = tuple(
    sorted(
        {n + d for n in (0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64) for d in (-1, 0, 1)}
    )
)
_WIDTHS: Final = (1, 2, 3, 4, 8)  # bytes of a number; GRIB has numbers of 3 bytes
_JSON: Final = tuple(
    b"""0 -0 1 -1 2 01 1.0 1.5 1e5 1e400 -1e400 9007199254740993 9223372036854775807 9223372036854775808
    18446744073709551615 18446744073709551616 123456789012345678901234567890 NaN -Infinity null true false {} [] [[]]
    "" "a" "0" "0.0" "." ".." "/" "//" "a/../b" "\\u0000" "\\ud800" "\\ud83d\\ude00" "\xc3\xa9" "\xff" "base64:AAEC"
    "base64:?" "{{" "{{x}}" "{}" "[]" [null,1,2] ["u"] ["u",1,2] ["u",1] ["u",-1,2] {"a":1} , : [ ] { } \" \\ \x00
    ,"k":["u",1,2] "zarr_format" "shape" "refs" "version" "a/.zarray":""".split()
)


class Mutator:
    """Makes inputs by changing tokens (``is_text``) or bytes of ``seeds``; ``words`` may be inserted anywhere."""

    def __init__(self, seeds: Sequence[bytes], seed: int, *, is_text: bool, words: Sequence[bytes] = ()) -> None:
        self._seeds = list(seeds)
        self._tokens = [_TOKEN.findall(data) for data in seeds] if is_text else []
        self._words = [*words, *_JSON] if is_text else list(words)
        self._base = seed * FORMS
        self._random = random.Random()

    def input(self, number: int) -> bytes:
        """Return the input ``number``; the first inputs are the seeds unchanged."""
        if number < len(self._seeds):
            return self._seeds[number]
        pick = self._random
        pick.seed(self._base + number)
        if self._tokens:
            data = b"".join(self._shuffle_tokens(pick))
            if pick.random() < 0.8:
                return data[:LONGEST]
        else:
            data = self._seeds[int(pick.random() * len(self._seeds))]
        out = bytearray(data)
        while True:
            self._change_bytes(out, pick)
            if pick.random() < 0.5:
                return bytes(out[:LONGEST])

    def _shuffle_tokens(self, pick: random.Random) -> list[bytes]:
        """Return the tokens of a seed, with some of them replaced, moved, repeated or left out."""
        tokens = self._tokens[int(pick.random() * len(self._tokens))].copy()
        while tokens:
            size = len(tokens)
            at = int(pick.random() * size)
            match int(pick.random() * 10):
                case 0 | 1 | 2:
                    tokens[at] = self._choose_word(pick)
                case 3:
                    tokens.insert(at, self._choose_word(pick))
                case 4:
                    del tokens[at : at + 1 + int(pick.random() ** 3 * 8)]
                case 5:
                    stop = at + 1 + int(pick.random() ** 2 * 20)
                    tokens[at:at] = tokens[at:stop] * (1 + int(pick.random() ** 8 * 40))
                case 6:
                    other = int(pick.random() * size)
                    tokens[at], tokens[other] = tokens[other], tokens[at]
                case 7:
                    others = self._tokens[int(pick.random() * len(self._tokens))]
                    start = int(pick.random() * len(others))
                    tokens[at : at + 1] = others[start : start + 1 + int(pick.random() ** 2 * 30)]
                case 8:
                    text = bytearray(tokens[at])
                    self._change_bytes(text, pick)
                    tokens[at] = bytes(text)
                case _:
                    depth = 1 << int(pick.random() ** 6 * 17)
                    tokens[at] = b"[" * depth + tokens[at] + b"]" * depth if pick.random() < 0.9 else b'{"a":' * depth
            if pick.random() < 0.4:
                break
        return tokens

    def _choose_word(self, pick: random.Random) -> bytes:
        if pick.random() < 0.1:
            return b"%d" % _NUMBERS[int(pick.random() * len(_NUMBERS))]
        return self._words[int(pick.random() * len(self._words))]

    def _change_bytes(self, out: bytearray, pick: random.Random) -> None:
        size = len(out)
        at = int(pick.random() * size)
        match int(pick.random() * 10) if size else 9:
            case 0 | 1:
                out[at] ^= 1 << int(pick.random() * 8)
            case 2:
                out[at] = int(pick.random() * 256)
            case 3 | 4:
                self._change_number(out, at, pick)
            case 5:
                del out[at : at + 1 + int(pick.random() ** 3 * size)]
            case 6:
                stop = at + 1 + int(pick.random() ** 3 * size)
                out[at:at] = out[at:stop] * (1 + int(pick.random() ** 8 * 20))
            case 7:
                other = self._seeds[int(pick.random() * len(self._seeds))]
                start = int(pick.random() * len(other))
                part = other[start : start + 1 + int(pick.random() ** 2 * 64)]
                out[at : at + len(part) * (pick.random() < 0.7)] = part
            case 8:
                del out[at:]
            case _:
                word = self._words[int(pick.random() * len(self._words))] if self._words else bytes(8)
                out[at : at + len(word) * (pick.random() < 0.5)] = word

    def _change_number(self, out: bytearray, at: int, pick: random.Random) -> None:
        """Change the number at byte ``at``: to a limit, by a small step, to another number, or to a distance."""
        width = _WIDTHS[int(pick.random() * len(_WIDTHS))]
        at -= at % width if pick.random() < 0.5 else 0
        order: Literal["little", "big"] = "little" if pick.random() < 0.5 else "big"
        number = int.from_bytes(out[at : at + width], order)
        match int(pick.random() * 6):
            case 0 | 1:
                number = _NUMBERS[int(pick.random() * len(_NUMBERS))]
            case 2:
                number += int(pick.random() * 33) - 16
            case 3:
                number = number << 1 if pick.random() < 0.5 else number >> 1
            case 4:
                other = int(pick.random() * len(out))
                number = int.from_bytes(out[other : other + width], order)
            case _:  # where the data end, from their beginning or from here, or any other place
                number = (len(out), len(out) - at, int(pick.random() * len(out)))[int(pick.random() * 3)]
        out[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, order)

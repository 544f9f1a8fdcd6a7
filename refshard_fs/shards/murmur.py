"""MurmurHash3_x86_128 of a 64-bit number, the low half: how neuroglancer spreads chunks over shards. No I/O here."""

from __future__ import annotations

__all__ = ["murmur"]

_MASK = 0xFFFFFFFF
_KEYS = (0x239B961B, 0xAB0E9789, 0x38B34AE5)
_LENGTH = 8


def murmur(number: int) -> int:
    """Return the low 64 bits of the hash, seed 0, of the eight bytes of ``number``, little-endian."""
    low, high = number & _MASK, number >> 32
    first = _turned(low * _KEYS[0] & _MASK, 15) * _KEYS[1] & _MASK
    second = _turned(high * _KEYS[1] & _MASK, 16) * _KEYS[2] & _MASK
    state = [first ^ _LENGTH, second ^ _LENGTH, _LENGTH, _LENGTH]
    state = _summed([_mixed(word) for word in _summed(state)])
    return state[0] | state[1] << 32


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


def _summed(state: list[int]) -> list[int]:
    first = sum(state) & _MASK
    return [first, *((word + first) & _MASK for word in state[1:])]


def _mixed(word: int) -> int:
    word ^= word >> 16
    word = word * 0x85EBCA6B & _MASK
    word ^= word >> 13
    word = word * 0xC2B2AE35 & _MASK
    return word ^ word >> 16

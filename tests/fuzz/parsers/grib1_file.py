"""Open GRIB files of edition 1 with sidecars: all fields lie in the file, or an error of this package is raised."""

from __future__ import annotations

import itertools

from tests.fuzz.parsers.grib2_file import END, IS_TEXT, VALUES, WORDS, check_input, make_message_1, set_up
from tests.support.grib_messages import make_message

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

_SAMPLE = "regular_ll_sfc_grib1"
_GRID = {"sample": _SAMPLE, "Ni": 2, "Nj": 2}
_INDICATORS = (0, 1, 2, 3, 4, 5, 10, 51, 113, 123)  # kinds of times
_LEVELS = (1, 100, 101, 105, 109, 112, 160, 200)
_LOCAL = (  # definitions in section 1: none, of members, of wave spectra
    {},
    {"setLocalDefinition": 1, "localDefinitionNumber": 1, "number": 3, "totalNumber": 9},
    {"setLocalDefinition": 1, "localDefinitionNumber": 13, "table2Version": 140, "indicatorOfParameter": 251},
)


def make_seeds() -> list[bytes]:
    """Return messages in each framing, of each kind of time, level and local definition, alone and together."""
    plain = make_message_1()
    second = make_message(VALUES, **_GRID)
    index = f"1:0:d=2024:TMP\n2:{len(plain)}:d=2024".encode()
    files = [
        plain,
        plain + plain,
        plain.ljust(120, b"\0") + second,
        b"\x01\r\r\n001\r\r\nHTXA98 KWBC 010000\r\r\n" + plain + b"\r\r\n\x03" + second,
        plain + b"\n" + second + b"the end",
        plain + make_message(VALUES, Ni=2, Nj=2) + second,
    ]
    products = [make_message(VALUES, **_GRID, timeRangeIndicator=kind, P1=3, P2=6) for kind in _INDICATORS]
    levels = [make_message(VALUES, **_GRID, indicatorOfTypeOfLevel=kind, level=5) for kind in _LEVELS]
    local = [make_message(VALUES, **_GRID, **keys) for keys in _LOCAL]
    pairs = [first + second for first, second in itertools.pairwise(products + levels + local)]
    indexed = [plain + second + END + index, plain + second + END + b'{"_offset": 0}']
    return [*(data + END for data in (*files, *pairs, *local)), *indexed]

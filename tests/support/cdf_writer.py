"""Write CDF files by the format's internal description, also files that its library and cdflib never write.

The texts at the end are compressed files that the library itself wrote (3.9.1, through spacepy 0.7).
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TYPES = {"i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 11, "u2": 12, "u4": 14, "f4": 21, "f8": 22, "c16": 32, "S": 51}
EPOCH, TT2000 = 31, 33
GZIP, RLE, HUFFMAN = 5, 1, 2


class Variable(NamedTuple):
    """A variable of ``values``; if it ``varies``, their first axis is that of records.

    ``runs`` are the first and the last record of each VVR or CVVR, by default of one with all records; records outside
    of them are missing. ``tree`` is the number of entries of an index.
    """

    values: npt.NDArray[Any]
    attributes: Mapping[str, Any] = {}
    type: int | None = None
    varies: bool = True
    runs: Sequence[tuple[int, int]] | None = None
    compression: int = 0
    sparse: int = 0
    pad: bytes = b""
    is_z: bool = True
    tree: int = 0
    novary: int = 0  # dimensions without variance that come first


def encode_runs(data: bytes) -> bytes:
    """Compress by RLE: a run of zeros becomes a zero and the length of the run less one."""
    out = b""
    for part in data.replace(b"\0", b"\0\0").split(b"\0\0"):
        out += part + b"\0\0"
    return out[:-2]


class Writer:
    """The bytes of a file. Methods add records, and set offsets in earlier records when these are known."""

    def __init__(self, version: int = 3, encoding: int = 6, *, is_row_major: bool = True, release: int = 7) -> None:
        self.version, self.encoding, self.is_row_major = version, encoding, is_row_major
        self.release = release
        self.word = "q" if version == 3 else "i"
        self.name = 256 if version == 3 else 64
        self.order = ">" if encoding in (1, 2, 5, 7, 9, 11, 12, 18) else "<"
        magic = b"\xcd\xf3\0\1" if version == 3 else b"\xcd\xf2\x60\2" if release > 5 else b"\0\0\xff\xff"
        self.data = bytearray(magic + b"\0\0\xff\xff")

    def add_record(self, kind: int, fields: str, *values: Any, tail: bytes = b"") -> int:
        """Add a record of ``kind``; return its offset."""
        layout = struct.Struct(">" + ("Oi" + fields).replace("O", self.word))
        at = len(self.data)
        self.data += layout.pack(layout.size + len(tail), kind, *values) + tail
        return at

    def patch(self, record: int, fields: str, value: int, *, is_count: bool = False) -> None:
        """Set the field after ``fields`` of a record to an offset, or to a number."""
        skipped = struct.calcsize(">" + ("Oi" + fields).replace("O", self.word))
        struct.pack_into(">" + ("i" if is_count else self.word), self.data, record + skipped, value)

    def pad_name(self, name: str) -> bytes:
        return name.encode().ljust(self.name, b"\0")

    def encode_entry(self, value: Any, dtype: int | None = None) -> tuple[int, int, int, bytes]:
        """Return type, number of elements, number of texts and bytes of an attribute's value."""
        if isinstance(value, str):
            return 51, len(value), 1, value.encode()
        if isinstance(value, list) and isinstance(value[0], str):
            text = "\\N ".join(value).encode()
            return 51, len(text), len(value), text
        found = np.atleast_1d(value)
        return (
            dtype or TYPES[found.dtype.str[1:]],
            found.size,
            0,
            found.astype(found.dtype.newbyteorder(self.order)).tobytes(),
        )

    def encode_values(self, variable: Variable, first: int, last: int) -> bytes:
        """Return the bytes of the records ``first`` to ``last`` (included)."""
        found = variable.values[first : last + 1] if variable.varies else variable.values[None]
        if not self.is_row_major:
            found = found.transpose(0, *range(found.ndim - 1, 0, -1))
        return np.ascontiguousarray(found).astype(found.dtype.newbyteorder(self.order)).tobytes()

    def add_index(self, rows: list[tuple[int, int, int]], size: int) -> int:
        """Add an index of ``rows`` (first and last record, offset) with at most ``size`` entries; 0 means no limit."""
        while size and len(rows) > size:
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            rows = [(part[0][0], part[-1][1], self.add_index(part, 0)) for part in parts]
        count = len(rows) + 2  # two entries are not used
        columns = [[*(row[column] for row in rows), -1, -1] for column in range(3)]
        return self.add_record(
            6, f"Oii{count}i{count}i" + "O" * count, 0, count, len(rows), *columns[0], *columns[1], *columns[2]
        )

    def add_values(self, variable: Variable) -> int:
        """Add the values of a variable, and their index; return its offset."""
        runs = variable.runs
        if runs is None:
            runs = [(0, len(variable.values) - 1 if variable.varies else 0)]
        rows = []
        for first, last in runs:
            data = self.encode_values(variable, first, last)
            if variable.compression:
                packed = encode_runs(data) if variable.compression == RLE else zlib.compress(data, 6, wbits=31)
                rows.append((first, last, self.add_record(13, "iO", 0, len(packed), tail=packed)))
            else:
                rows.append((first, last, self.add_record(7, "", tail=data)))
        return self.add_index(rows, variable.tree) if rows else 0

    def add_variable(self, name: str, number: int, variable: Variable, gap: int) -> int:
        """Add a variable's values and descriptor; return the offset of the descriptor."""
        values = variable.values
        index = self.add_values(variable)
        compression = self.add_record(11, "iiii", variable.compression, 0, 1, 6) if variable.compression else -1
        self.data += bytes(gap)
        lengths = values.shape[1:] if variable.varies else values.shape
        elements = values.dtype.itemsize if values.dtype.kind == "S" else 1
        dtype = variable.type or TYPES[values.dtype.str[1:] if values.dtype.kind != "S" else "S"]
        flags = variable.varies + 2 * bool(variable.pad) + 4 * bool(variable.compression)
        ranks = (0,) * variable.novary + (-1,) * len(lengths)
        sizes = (7,) * variable.novary + lengths
        dimensions = struct.pack(f">{len(ranks)}i", *ranks)
        if variable.is_z:
            dimensions = struct.pack(f">{1 + len(sizes)}i", len(sizes), *sizes) + dimensions
        last = len(values) - 1 if variable.varies else 0
        return self.add_record(
            8 if variable.is_z else 3,
            f"OiiOOiiiii{128 * ((self.version, self.release) < (2, 5))}xiiOi",
            *(0, dtype, last, index, index, flags, variable.sparse, 0, -1, -1, elements, number, compression, 0),
            tail=self.pad_name(name) + dimensions + variable.pad,
        )

    def write(
        self,
        variables: Mapping[str, Variable],
        attributes: Mapping[str, Any] = {},
        rank: Sequence[int] = (),
        gap: int = 0,
    ) -> bytes:
        """Return a file: ``rank`` are the lengths of rVariables, ``gap`` the bytes before a variable's descriptor."""
        copyright = b"Common Data Format (CDF)".ljust(256, b"\0")
        flags = 2 + self.is_row_major
        cdr = self.add_record(
            1, "Oiiiiiiiii", 0, self.version, self.release, self.encoding, flags, 0, 0, 0, 0, -1, tail=copyright
        )
        lengths = struct.pack(f">{len(rank)}i", *rank)
        numbers = 0, 0, 0, len(rank), 0
        gdr = self.add_record(2, "OOOOiiiiiOiii", 0, 0, 0, 0, *numbers, 0, 0, 20170101, -1, tail=lengths)
        self.patch(cdr, "", gdr)
        lists: dict[str, tuple[int, str]] = {"r": (gdr, ""), "z": (gdr, "O"), "a": (gdr, "OO")}

        def append(kind: str, at: int) -> None:
            self.patch(*lists[kind], at)
            lists[kind] = at, ""

        numbered: dict[str, tuple[bool, int]] = {}
        for name, variable in variables.items():
            number = sum(is_z == variable.is_z for is_z, _ in numbered.values())
            numbered[name] = variable.is_z, number
            append("z" if variable.is_z else "r", self.add_variable(name, number, variable, gap))
            self.patch(gdr, "OOOOiiii" if variable.is_z else "OOOO", number + 1, is_count=True)
        names = dict.fromkeys([*attributes, *(each for variable in variables.values() for each in variable.attributes)])
        for position, name in enumerate(names):
            adr = self.add_record(
                4,
                "OOiiiiiOiii",
                0,
                0,
                1 if name in attributes else 2,
                position,
                *bytes(3),
                0,
                0,
                0,
                -1,
                tail=self.pad_name(name),
            )
            append("a", adr)
            self.patch(gdr, "OOOOi", position + 1, is_count=True)
            last = {False: (adr, "O"), True: (adr, "OOiiiii")}
            entries = [(False, at, value, None) for at, value in enumerate(attributes.get(name, []))]
            entries += [
                (*numbered[each], of.attributes[name], of.type)
                for each, of in variables.items()
                if name in of.attributes
            ]
            for is_z, number, value, dtype in entries:
                is_time = dtype in (EPOCH, TT2000) and not isinstance(value, str)
                kind, elements, texts, data = self.encode_entry(value, dtype if is_time else None)
                at = self.add_record(
                    9 if is_z else 5, "Oiiiiiiiii", 0, position, kind, number, elements, texts, 0, 0, -1, -1, tail=data
                )
                self.patch(*last[is_z], at)
                entries_of = [of for of in entries if of[0] == is_z]
                self.patch(adr, "OOiiiiiO" if is_z else "OOii", len(entries_of), is_count=True)
                self.patch(adr, "OOiiiiiOi" if is_z else "OOiii", max(of[1] for of in entries_of), is_count=True)
                last[is_z] = at, ""
        self.patch(gdr, "OOO", len(self.data))
        return bytes(self.data)


def compress_file(data: bytes, compression: int = GZIP) -> bytes:
    """Return a file of version 3 compressed as a whole."""
    packed = zlib.compress(data[8:], 6, wbits=31) if compression == GZIP else encode_runs(data[8:])
    at = 8 + 32 + len(packed)
    ccr = struct.pack(">qiqqi", 32 + len(packed), 10, at, len(data) - 8, 0) + packed
    return data[:4] + b"\xcc\xcc\0\1" + ccr + struct.pack(">qiiiii", 28, 11, compression, 0, 1, 6)


def read_real_file(version: int) -> bytes:
    """Return a file that the format's library wrote: column-major with TT2000 in version 3, with EPOCH in version 2."""
    return zlib.decompress(base64.b85decode("".join(_REAL[version].split())))


_REAL = {
    3: r"""
c-lMrnSqgk;s1XIFkrL*5m2@RkYEO4P9SCjVkQOzVEhjST+aEqx%qhtE{P?H3U2vDxrrqT8qO|mnp_zrB?ZM+`ufQ!X?p3!X~}wdiN%R}>G@?`!3BxQs
R{uZmBpFK#ZaAz$(cEsC6!!$j=_%l?)fPxiA5<25QT0znduoN3eKr{C8<SR?nSAoc}b}`B{~YeiA9w;iFqjsMh52Qh6<s<j$8}_1VYfl2MAcsL4#@vgc
hFwm0$;j8<fq8tb@_`XemOD(FJ4(gv~4hp_y(V;s;Kn09d>P6y;~7CYLabaA1QT#z0^Uiy&;_<{2CkfEoU5UQjI&&~Rsj#y2Cb@DFi~2w@ln)`;+DnG6
jtSokwz3%C5dR7|b#<ZcY5v1%<T&xfi^01_O~%m&JZiU^}bCn3@7=tiK%D4QMwg93wVL4I<^2#-c+pfo_aGC<6Y6g`XxHgc}vyoF>06Rd<pD*ZrF&<8U
fBp&AI<LTn-={LfI+W}hZB8QzKwo)ISZZm!#+Q?A^P0x%ei1g15DzS7BIyjAxXeJ!#pAm`AkeZiTlwLXFlRpb6JWhS`{0J56fwqd^2^l#ZV*`ZbfN`?#
KZyV-KSJaFfITqz0MpL|2h9A)^8hVPF=OUOZaL&M5bEa{5<FUqS)t`eW~8bJr4;~+m((z5=;t7EqF^#KCZHvySQHYCt0scxP@W?|ZJ}v7r4=JQCSa+S1
r|<>B-cuOiD>4rVCDio6_{NhaTnJBS3j3{gApF~wuoFH91aaPV`w<BV#@_cEhpp%;D3x30j!u2z`qoh0gxiVXoN?A9a=HOiWC8CSc@T~sv9{5FtQXIW(
)|bBgcT7r;iV?aW>kWM2!J9XqYnLYM6aTbmyZGRe|sn<f4axL1-@$&5YiVfc1HhEB)ev#G>NVksTTEIulz{j0w5fhNanrPYx7Ap3p&?CK8)sd?5R|u@s
r`AqQh<91|=ulMo38W!wS?M7|->*jn*S$le3V<t65(7LRsf!G)Ou1MS-IqD^GB;RQhUS143gQs6dL{C0@Rk?A%Yu>G(;rqQ&2VET`N)g}-<A#Ed=j$(W
Zrd8%>Y=-wmY2uG(Wcp(c5c49rrA59Qn!%WP54VRo0^M~XJ>6xKvhwD{;Dr;q{{L70KCif0fn(7<38S=28w!Knd}f$Ep6i-_HrnX*-qd2TH4$4AZ_ny4
tJ&~!a%ptgTgy*p_nq&P{qg9?!u5W0cYeCOGuvFRru_9K{_?uYFX!{?|CGN!xtYCwZw0H}QE49qM5O^PICK~Q<JF57
""",
    2: r"""
c-qBQTWb?R6rLoTOE)dP78JTr@q(qd*ozmmu}NyMjfJ#D@j=&QbJ27+?5=GCqF|+hTB)F7tycU2^+D^KiqI!PQS?bIv05ym2v(%k2aU6tnPwU{0a?)@C
ueVG&Ntt=%sl>bzzjep1AwU(z(4qFh8jKtb|^L|7LXg}3?6K&)Y~hGoQGF=&L_#eyvnU>_4wAaF;z_}n`>%9;Yf8<iG->}Ug4{wQXd;k@*#oijHQ%#NW
qqTD4vL`DK_8^x@+2`aG00F9Qx3gh(}{8*D8prAhT_<AczNrgj&UQ@Nz1_i(#(5wyCL(>khhE@E^uj%#)@TAa5!FrAP5QyT%c|wh{xv9lV6!0tVWxf_C
o_@7ZC>cS3ABW$BO*QjOr<NMnJ+g*Bt+&mZjS%;97<L#!hhp9!zqq-WRV-P2`|R~N!*p29u|PK%yDNfdG>OBA}W)-_T4C3trhiUY1}4(bYIZn=UaoB8<
>!>hHN0DuGDq!fz%y-X^H;>=rub{)eN2rwoSjVXU<Hih3Y<|1~@+4)ybZ<w8bv;&l<kuIG<8oWjN>nzgm-{I#ZJFE+&JCKUVWj}M1#@*v?_j@}00RvoV
SW75>6?&Dkv^KIP07g)}ZC9bL!iCv~gjDfw@ivil2%;cIQ-)%!&Bst(;ZI{*<efEL#I8J-&kwc((9!~_XvxLSv6JG`vOIRSLo^TF0e@G}Sf1BYv9nNRx
~!WJ>_QK`xs0O5w&FeotHR!nq+pf8+3c{_S-T^NBLfC2ld!_jk@z<iYo9D)cL7Qn_H(l0j01C8Hg&4U4Shb1Mm@JGD{u3`8zZMPnaag+Wsr017#c2bh)
kbsTGKJwI6JXdNslh3Pk47-n%Hw^Zt%#;Z7(N<SLb&3eR|P9^Yr|a``<o{h1LeHZR&sX?Be0qKR!Pn-q(NZ`=|6^+wra6KVHv_-y5*TnO$2r6g!ep^Av
Z?@{DraC7f!{Jl;-kz_Y*BKztfdMme`&UoJeqRWGAR*Tz6g#weiH<v>dWl1voPdILZksnoYpKyA9IPuh)|w>=XJ3MspSM(Xpox5FlD^q4@9+OYqE+x;T
KF@(z0naqWqeTXDmJ|>+qwU9L^NnTb2V|8lRYpG_s?dlX!k$28Ic$kw5*lDLtyOT=4rDK!}ueWIWokL{NXE5haB)U71ncg`>zE@Cy;hiX(EZkq-he{(w
>`Jxy2e?#<5Lg9%0ftf*e*
""",
}

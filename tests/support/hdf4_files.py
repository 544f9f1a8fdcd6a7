"""HDF4 files that the library wrote (4.2, through pyhdf 0.11), stored here as compressed texts.

`make_values` returns the values of each data set for its type and shape. ``layouts`` has an array in each layout of
the library. ``grid`` is a file of HDF-EOS2 with a grid, ``grids`` with two, ``swath`` with a swath and a field in a
Vdata. The interface of version 3.2 (DFSD) wrote ``old``.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refshard_fs.formats.hdf4.objects import parse_vdata, parse_vgroup


def read_hdf4_file(name: str) -> bytes:
    """Return the bytes of the file ``name``."""
    return zlib.decompress(base64.b85decode("".join(_FILES[name].split())))


def make_hdf4_file(elements: Mapping[tuple[int, int], bytes]) -> bytes:
    """Return a file with these plain elements, by tag and reference number."""
    at = 10 + 12 * len(elements)
    table = b""
    for (tag, ref), data in elements.items():
        table += struct.pack(">HHii", tag, ref, at, len(data))
        at += len(data)
    return b"\x0e\x03\x13\x01" + struct.pack(">HI", len(elements), 0) + table + b"".join(elements.values())


def make_vdata(name: str, dtype: npt.DTypeLike, records: int, kind: str = "", interlace: int = 0) -> bytes:
    """Return the header of a Vdata whose fields are those of a structured type of big-endian numbers and texts."""
    codes = {"f4": 5, "f8": 6, "i1": 20, "u1": 21, "i2": 22, "u2": 23, "i4": 24, "u4": 25}
    fields = [np.dtype(dtype)[field] for field in np.dtype(dtype).names or ()]
    kinds = [codes.get(field.base.str[1:], 4) for field in fields]
    orders = [field.itemsize // max(field.base.itemsize if field.base.kind != "S" else 1, 1) for field in fields]
    count = len(fields)
    sizes = [field.itemsize for field in fields]
    numbers = struct.pack(f">{4 * count}H", *kinds, *sizes, *([0] * count), *orders)
    texts = [text.encode() for text in (*(np.dtype(dtype).names or ()), name, kind)]
    head = struct.pack(">HiHH", interlace, records, sum(sizes), count)
    return head + numbers + b"".join(struct.pack(">H", len(text)) + text for text in texts) + bytes(9)


def read_elements(data: bytes) -> dict[tuple[int, int], bytes]:
    """Return the elements of a file by tag and reference number."""
    return {(tag, ref): data[offset : offset + length] for tag, ref, offset, length in list_descriptors(data)}


def list_descriptors(data: bytes) -> list[tuple[int, int, int, int]]:
    """Return tag, reference number, offset and length of all elements, in the order of the file."""
    rows: list[tuple[int, int, int, int]] = []
    at = 4
    while at:
        count, after = struct.unpack_from(">HI", data, at)
        rows += [struct.unpack_from(">HHii", data, at + 6 + 12 * number) for number in range(count)]
        at = after
    return sorted((row for row in rows if row[0] != 1 and row[2] >= 0), key=lambda row: (row[2], row[3]))


def spread_elements(data: bytes, gap: int, *, also_headers: bool = False) -> bytes:
    """Return a file with ``gap`` bytes between its elements; with ``also_headers``, before headers of chunks, too."""
    rows = list_descriptors(data)
    table, body = b"", b""
    start = 10 + 12 * len(rows)
    for tag, ref, offset, length in rows:
        body += bytes(gap) if tag != 40 or also_headers else b""
        table += struct.pack(">HHii", tag, ref, start + len(body), length)
        body += data[offset : offset + length]
    return data[:4] + struct.pack(">HI", len(rows), 0) + table + body


def extract_data_set(data: bytes, name: str) -> bytes:
    """Return a file with only the data set ``name``, its dimensions, its attributes, and the elements of its values."""
    elements = _cut_blocks(read_elements(data))
    groups = {key: parse_vgroup(contents) for key, contents in elements.items() if key[0] == 1965}
    root = next(key for key, group in groups.items() if group.kind == "CDF0.0")
    variable = next(key for key, group in groups.items() if (group.name, group.kind) == (name, "Var0.0"))
    dimensions = [member for member in groups[variable].members if member in groups]
    kept = {root: make_vgroup("", "CDF0.0", [*dimensions, variable])}
    pending = [variable]
    while pending:
        tag, ref = pending.pop()
        for key in ((tag, ref), (tag | 0x4000, ref), *([(1963, ref), (1963 | 0x4000, ref)] if tag == 1962 else [])):
            if key in elements and key not in kept:
                contents = kept[key] = elements[key]
                pending += groups[key].members if key in groups else ()
                pending += _list_stored(elements, contents) if key[0] & 0x4000 else ()
    return make_hdf4_file(kept)


def _list_stored(elements: Mapping[tuple[int, int], bytes], header: bytes) -> list[tuple[int, int]]:
    """Return the elements to which the header of a special element points."""
    match int.from_bytes(header[:2]):
        case 1:
            blocks = np.frombuffer(elements[20, header[15]], ">u2")[1:].tolist()
            return [(20, header[15]), *((20, block) for block in blocks if block)]
        case 3:
            return [(40, int.from_bytes(header[8:10]))]
        case 5:
            table = int.from_bytes(header[25:27])
            rows = elements.get((1963, table), b"")
            if not rows:
                blocks = _list_stored(elements, elements[1963 | 0x4000, table])[1:]
                rows = b"".join(elements[block] for block in blocks)
            width = parse_vdata(elements[1962, table]).size
            ends = [rows[end - 4 : end] for end in range(width, len(rows) + 1, width)]
            return [(1962, table), *((int.from_bytes(end[:2]), int.from_bytes(end[2:])) for end in ends)]
    return []


def _cut_blocks(elements: dict[tuple[int, int], bytes]) -> dict[tuple[int, int], bytes]:
    """Return the elements; the blocks of linked elements have only bytes of these elements."""
    for (tag, _), header in list(elements.items()):
        if tag & 0x4000 and header[:2] == b"\0\1":
            left = int.from_bytes(header[2:6])
            for block in _list_stored(elements, header)[1:]:
                elements[block] = elements[block][:left]
                left -= len(elements[block])
    return elements


def make_vgroup(name: str, kind: str, members: Sequence[tuple[int, int]]) -> bytes:
    """Return a Vgroup."""
    tags, refs = zip(*members, strict=True)
    head = struct.pack(f">{2 * len(members) + 1}H", len(members), *tags, *refs)
    return head + b"".join(struct.pack(">H", len(text)) + text for text in (name.encode(), kind.encode())) + bytes(9)


def shorten_metadata(data: bytes) -> bytes:
    """Return a file of HDF-EOS2 without the padding of its StructMetadata, and of linked elements."""
    elements = _cut_blocks(read_elements(data))
    for tag, ref in [key for key in elements if key[0] == 1962 and b"StructMetadata.0" in elements[key]]:
        text = elements[1963, ref].rstrip(b"\0")
        elements[tag, ref] = make_vdata("StructMetadata.0", np.dtype([("VALUES", f"S{len(text)}")]), 1, "Attr0.0")
        elements[1963, ref] = text
    return make_hdf4_file(elements)


def make_values(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the values of a data set in these files."""
    values = np.arange(np.prod(shape)) * 7 % 101
    if dtype == "S1":
        return (values % 26 + 97).astype("u1").view("S1").reshape(shape)
    return values.astype(dtype).reshape(shape)


_FILES = {
    "layouts": """
c-rk<3v^UPn*O`folZg$0)Y@-p#i}t7?Ms11PF9q5P826!pn50yYqmMgrpOmLI6R04i6uIDB=^rC^|kEH4f|HD5JY8xO3d`?3|sPSsk4{x(9dHm2sVMz
yIF<cHe}i37PDS=gh4>mHO^~zxwO1x>a>={pqe7ACYLH^F%dADTPc#(QAlkmHBOo0Dc#E1+bMU#tu9HI0`t6$kYKGLlipz^5p!tDHeD<Z~~>Wp4e%?ry
!39{v0?Sax?HZz?){BqJBhiUojt?1mHU00?OsQaqYnAG(f>G0mlL(Z`>b&M*+jO_z_$b_>iZJQ24nlPgx+?0=!)?>`!@7a3t_=1lx#4^c9SHjhG=g8n~
XZ?Ihbd;uvrXY(`z}kBQBRzypEjIdi!k>~&Ii*kIoVYzG@Q*ek?-*kFG_?1v5Z3rt7eJ}Bmb<OM&ygY!a;_RJuWBX0&OONo%j0go0r^kifTAMKp6MC7P
fhDYS6U&bzxqmCH|MGy34JR@?{H{&&tqrMrx5IO3V@rlU$1Ai%U*qre_a2(nPZQ_WQ_8A2Hy|hmfFt`64<V9OKK9)X!dO1GjK7*XF)A7Ev4{XbfmG*(Y
%rt2q=r2f<yr_Et_p8B>qwNbyM2@-_ctnnJ3$}_JbuYME<gl&aNs*)O1uuy_8TfsXqwWR268T`@uSJf!7yKadAw-4AB1gRn$BKL?@C=c|=E8X_NBf}M!
b)kM6r!SfX`kVc{~CBT@(zQ%2sj0KQLiG8v<ce3C`T~bylA_$58A2dxU>)SlpL45sC&uJnGZS2D)~U<u%YDlBF9)M`9|cZM`@zSF}_Pjh#Yk<%@z4b;9
EtGx|ddod=zk#$Wiyw{US%-EPYhus8{KmBEJFnJ(0ua($83q_JN(H+|DhwQ*<NIvR7D+_CdQYtCI0G2KcP>J@A+Dcu7TG=3kb)Hxre$OWvD+c|0yaUg#
;)`ZMZR#{D@PdBI=KW4{IbTYz^1CxL@@SpEq2ZOA78pWy3=xekMI`QHIggB)XS`5zUX1GrDFKs1?w(GOQbr-{Iyh-sAdM?j8rRezQPqwlTOF#6kV3Woj
JMCHI_fo+U&EoqXijV1weUm6C^WZ)X%FkUAd^pWzXgfj*BtZ*2gW1GR5O621CWF$BkL#~m+VLV1SxaKamaHa$A6b|D(!a*N*y(1ha@V^O%@#n(HBXW-x
PCjs<a2OX0rvUg4;o!XcY2h$_PB<77?$3lXlc*w6IE-V2GYfd8aG<-QN;r(y3J3kS;#uL$20kww#(xi-3(g!O56@$xz?lm?PB@Gw2nW}}Q!AYL!1oJ>@
d4rB{^R*jI17Ql77pWYgtLgq>k!Uj;HAQ0TqYdM<=zK{gY(|kg~Rww;b8vrUKUO%k#C4_7^etl8SqNsK)3I9;V|AIoaMl83ugszhj18wDjevj94VYtzy
-o#JWDvMf$tE`ZNSe6hw(|_lmmY*9CXO4XyGu96At=d)okJ5{#jKk9L5d8!5mrDCLAyDhr(g}Pr~sLRVN4sb8xjoIE=G}gZ@(8B%EsC2Zh7<uy8Qusy`
MEo{y?83y1Od!a-lF$q^3htyw7?#^uc6V?;CGBZ>=W+Dm<nO*Qp(_N+9AeX+0B=Wg=ZGqT3pXE)dR?2hd5c1L=~Wa@UXVfGn_8Fw^hwhYV;GcZc#p|`9
=t66aO=#N?5ju|rzGt)GTzS-!7Ww;t9+<E(A<{OR~dK@`0mpCz|=A&<|LK|E2FdybUj(CYEA2`1_Sfq29q~j%>DCsmw^IFxkNREr;c&;2TkmE&?E^(@9
iJUJztEOdgK0)MTC3Q%eBdJr;0^!e+<JodNUyc`w-o+wcD&>~S`DN<)8JFbPE@_&i*^=f;nlEXQ=(|;p=gRRyIbI~?E)jW&l)FsMm&y47a-1q@rleD}d
P@F6Ii4lQbL4ow)~<5ASoAIxd8w3JCg-*5IZ934)%7i&HS0I}YMVA!)ip~}QNz!+{N&F!FZ8L%jYr!q-kH7AM6DOgch@=!7N5BH%Xuy5Q$AVQ{zK-O_c
H(c(WYY^eRlpZq~_U&-R~Z%*wNgQ^Sc9%`tSQ6-<`aE<}Vx{#Qe*!#&>V|aO<L355#|0oc@nl_tc(#FM8RuOY?VcUh(_NeFJiSSN8PTexLvP>vtxNJo3
d;$NG&u<i2a(|KxmjWY+W(A32BS#_q2?u<7Gp9Y1gV_O1UcI8^yYvi;UQ(>|zO@4Rd1W0zysT>iB0e=SS;rD{5DRED2v1KHvS4jX-Q#^f0@=Pg}XVd>L
<u>HogiPH*ZFDffHMfFV@e#1CNj&s)hl2smSY~qlSsS~nu3+F6e?lMOw3`!X@K66T5@q*IT-pIHCLr2||K52T<+$AgA5i$LeM~uBCYij<j3zyv%q7Z(P
r(A9P%upWf)M=uh(x~e6U{Z!NDK;~XmZ`(C^^$JD=c+lJn5^?KdFJ6kB_9vI`S&6oLBw$$Zgku?^D$8KCyTaPW#Pns)UqPFF}ax3g_c;D8?cPjg_eR%>
OxDwW_6(@d6b2gl%_1S6l_)(T1GH}5sY92BN)L5MlgaAj9>&K7~!uS@;Zp}V-Zsk3lU#KJV(SHsJwLGrHBoPdk`N$bP=(aLW_C(Iv?jh(dGCw;@d<sSR
bkG#e6R!j`Qz_%!zmi@dA!5NKsZE^5lJi;{?Q`h$j)xAigUu%4vvYh<?QJoy&7R-lhD#U5+0@d<yYp#Iv2xg^EsYBiO;7&b%|%=I33yHb)<o5KXZZLCG
`-pC~db-jgVbL2AM$vc9pVs-})?p6a#bes`4$8hw>Cw7j@*W_dyJobsjlbIT{CJIXV%%QJGakxrucPAAiqf+8d;ew?YAL~~P_mH+l$+f8L|Rh>%8e`}P
#ByOM>aW*9@sp3KOxLmHP4o`ybbX9}rk}t}=&%4mIu<Akt^}pZrn=TG3YZr}I5A0~_BbXgcu@rPz#Zk~<6;DBjRbL7^tP&{bu<A!ahgE-LN-%;Ej9>&K
7{LfeFoF?`U<4x=;YScO4}&G(Vc6$hSb3o$-MhE4xWeV`s7&{rb~jXBGSiSXW?z7B4e(D_yDWK;BU6V*9XCxsZygh$L<T5(U3;rs-VRrK#c6MYtD&mHo
lv>2VxfhG9WloR__hGQqbk9(&$rNh$rI(<>n^Um;JQ$i?m2CxA%8L-4Dh1@{0nt#LTTz(=HsSm+bw?zP@)5rOO;U-d%eZguEO0k{e5eBfD#jQtyFY)6I
==POu6wp%hUj+Pq1y)y3R$KiVCbJl~cXwY06POO^);)dYT4Zho{LB@b0MIo5Vm(6~9j_4N$)wseLC>`zB;(?^2XfN_W1J#9kr!j-KKb8c0F!QW6EdOM@
urT}q~)cWE#My-PzV=v^9W3|}J{!3ah$f)R{h1S1&12u3i15q<<g^D8LdAsH0-xuy0aOYNtX8ZBO>O>Q;uhx$vpNK%c~SEXq`$JBm=8B2*YghmEv2`Ww
dwWjtP%~YB|+47?-ru9>4<D?L)q=j7y?XS}2&|+FnF7;&a6QCukG&4n`{6SZx4Nz$*T?s<t(0k4$heMo8nb&qM<!TcBukBL0^J}|S?bmSwgqbY4Y>MGp
;O!gKR!CPIL02+u@dNoMfcz7~E-oi_#KkC9T`RDwXt-c@6{S$n<urnVE+;z$T}~q@=yDoGL6_5L3c8$bFvheIj9>&K7{LfeFoF?`U<4x=!3aNsp!pV(L
irYWe<9vlh_@~ZFb9QVPBxiL{Sg--2AIjAn7jiLZ+^u49tD_#Los=uB;F#4cSi~^hlFB|L#bB8LVf8&Los=iC6j~zb66-QZ^d*4b9g9biYXWrX)n5><a
<t;*YiCmC#fDFv$BU}XIGT^C9uxe{KK~)eo@D+9PP_#cEuso`TK5BZuJ{)3#%@8_&aavSJpaglo@IMN;LFVGh|MdX2`h?kDS&F7G*omYd3?s|5fOQ7%L
6oRJ>tILo{tYd$!|T#JM5PFU{x1wQd}mFv9I>sHTq`&RWyCk<L|g?thb$zufWL`(vH4pGHvA&tpF6<z~ssP@5&o5x!Ye+hY~)o#ux$wQjg?;Fo#(s~;a
edgxN=)N1Hc-|TOy@%qxdZoew&KwG-<h)y7O<nb=3M5%~{h%Usfi1#8MK|F!@8sfQpE+^uwI1*bGr*=H`#Wm^oH$Laul$IdHpUZO(drWU8bw_62M~!{S
yy+-!%*va0@@9_}(o5N=%f9u&%CIEfq?UN&K;9gYH%8=*GkJ4M-kgs&;49bla{fmE&+|Nsv1gVyA>~aDb7ZvehK9U}A#ael3eh7&iap5esOPzty}rD0A
a7clEyImB3gpcJ7b7kwbthOeslIL=fqci{31ke}xZ1p*BkwuL`wjB1vU$%(-dCIVM_i5Ql_AI-hMnU)k+XyOCS?jH-m{kXjOG1XdH+=2%ar#L<$XPs?#
*9O?I-=2hb!;rcne~dOp?539q*yY`zG?<h`0UCUl!w<T+cQ6bAwfG0~W+&xeY~@x@((#O%zd!IXAknW*v^x(=s~G<0fVEW`z<7N_twl?h#JDT6{IN^>t
y@PF5)))JB9+8&&CE>q8btSlv@}ybuLgx=}!8*aD{Mcp(a~cB6o-umw!l@p@Q;iD3(H>Ubdvi0noI*<lOF*YQFW5ZjFcCWS4aP{#{VKuk9Zm>jl%nL1t
%YmgJRfMOl*I%^Ou88gzumM~jS3{ixwJ4IxKEn=>oc%73(AZPgDJYP@jX)VGJ=!JS>Piql=NH5kCds>U|gL<i+*wb2sAJ(OMVoz%keqfjBi9M}F_@TW*
PYh8+RCkI9Ke$)vi9IaB5q@;vrYH8ai14G^r6=~Zi14GkLQlNTdtD%B_|fgv6R-1$Bak!v=&sZgds>U|qq|y9>}f5+kM1>kVoz&v_0fG^nIYO}9Z?gn3
;5jvb-*`>(}XdvDfs;Z^}s&iGyvZz9LDzuXFc$F;WPsOyKor)hj5yR{Nse<2c9P!#{3*U8JuR|yLfE^P7Cm}!eM+$^lSkBLiB7TYK{>O<9Ok00-htB&A
{uVSsC;DTP8ui1z3AG2xERX$aKiJ0`q$$5+G;%t?+LrYDp8{8e_g5(;(mWg9OO8L0+q@iPq3|V16%<#oVr7u1k{n0<Xhb+7<n6)C&9$ypDmM9Yh;=O~>
y(Vr-Xkck1--gnXH@He5ryfFBn9jQQO%@z9UXu;Dq;e+Tf-c&!CJyMfs|$M42r{0Gs$N2h-e(Z+PqkL$d#LG&~Bi+((jZrrKpX`{Ws{H~I8=($U$2iI`
p+tLnq1AilW7<0KP(1RP)ra@vS`q8Evr9JP}>A4qjkLbA%_=xCX{Ft;S?n0Yh5k0VF6Tg=x8+v}C)AJL^zY{(Ch&E@49>x<z57vyE=ZK#Dz`UN!ft~|8
JqI9vK=d30{y_9F{!sK_oxJ%o(F5*guKPsjc~Gb4L82`;i=Kyo-J*xFPxN3Nx@C*#!FAqpk6f=qIz5LVe@FBj2L6NSVf;tYgLUxMMA3ux+sf-`C-gj`(
}TXVRcq&?z*;*q*4i2C@U2=qKMKt4JOg?j)9C^C_6X5)40wv@VLV;*U@d?9Qql7`uvgmWIPhT^UyL7-{_uoO{}Yh^v*^dz+7>VR8TS|cV}Mgd|5L#1E0
_vBPwVtx+;3|VJ<kB26g`Yz5IxYb?VRYr*xmL^_Nze837wu3MB9@^560Z~1)_)X648S>Z+nf57nHNTnf(dSb4sTNbKCZ3MbGoV|0;SI|5o&j2fi%!v=O
yNDRbs2dO@cLwzoP(&x^ntL=WRFq6c$W>weL58u+;Ac}b_|CCEP!JuegONDw`Y2Z$cb6FY7eJwFAWBK`9fogVa;9qUEUtH38j598-Wj|2D}(eoPcM`F+
GIz6uw?TisUXMpoW591=4m$HDDh#t&&JGnn+K+hY%JZ5ds!}t-g^G)E7Wd3LTv6TB3(Jt;+QIIoEQs#j+!koPe*Vh!oo+8aQ0~`42Sb0m6?s2TA&x+yK
P<47@Pm2h@hHB6guhY+_<;)DfhHBIkLllu3rU;9_W}PprcE50JCD-R-3)mEX>C~bp_V5y9hF>~u)DycFF-P>9qzqMm-rSO+C1h=`tMNCHEzj?7)aTKDx
}Y=78Zb@G8r$S?*ZRsU-5!5^<5e_VRuwocIybi&%TZ`i7Nt5v8r^kOzR+p{?h5`_Xp;Q1R?8SuKC`B_R%x!Q<kl8N!79WqDO_T2aW~euD{A?PDiX(~?#
52pOi2kQr6{Z7%-~0MiOOqgImM&9`66U}Y;E|Q)IK=B#@vpZ&LqmgqGAgc3b*6oKLX6{&}eO_b=TDK74BrJ*H_i(^EH*%)i?U9rM_`W)5j_QU+K;j3sK
d?g8KSKZ%v)s@6*>fN)caCXRF<$bP%hugg{hY!^<g_5vc1f+$h_+)NuzE9#)*$g%Z{OL0qL~K6jHp@Skq3Sghio{fkyCT3NeD<h2Vbbtgrtm69suU<I@
XQpn}MA6+Wc(;gM+GzAVU(#m)1qw=C-PO%t*VRz#(qfPBwf%cwCxfqytfp<4PHnMr^n^9y_uNi5HQoFrHnf!QVB~f|vGN)K!!MOXBuAnz9j|#9Ri@}-u
(9TxBZ==8W%u2SaX2mKlcV4JTH1kWKImLnvX6?JetRk9)C0;Df?87oH%Im8{C-r%I&9Z?}oh>`4MKiyKno}$RVcEeeEV~s`^8s)U;uA-f#^$=-YcH#`m
rXkTLs~TRi?2Dwf)Z9ebcI#(XaSa>2{`i*mYI>B>gKw&y=T{;gwA#y)}onTZp|qcsIcqs6?QG6C0NoX;>=+zTl;F)vAmZJOzL9bQ7xMJ?b4iL<qHFkUS
VJfEyG$l31^OCJshvvRbF3N-m4cjxyyw;rbRQq-I-IYsA1o+E9_fNE3pP2jx)!w&bCz4gczPbeEZkD)kZ0iSML(d{6=O@v5H5Xo|Fkue*;=g<#Zft|FJ
mxB-ZzlO%3kGCSR`)B+a&Gv}ooxK6BcRcoDL$?d>KHJq^w?_@q*zYFGJ&8h>?tv%kC&P1)<6)}jd5-Jpx?a)5!)DYv<{z-`V)RdfQ<=V%;R>wGP~#$KN
iHFKWVqM6@%&1pO0Maa6gSq-hFQ{X(0&v>#`H&<4!bJzX9wbP4QH1lh>Ic-P02w7Ld)=@pZ0M3i}q>)X&3fGIh%%T_;A&&(wYf*UzIH&E17a{9v*m`QB
m%w=$AFPdPYyAFNU$4(Lsq!@Nsus=sK5|am5idg4)vjjRK(B!FDn1UfHTpbwE^F%5E@qOec!s0$@^enx5idd(*~y$u^g7O;!6%C>wfrR7)e^VeU*lH_R
NjrQJfYf@i8k<rsuHd?^@aYYs+u*ju6bRB?`q4Wv%$CFqP0UUwrpztt34i1mgmI3#79}<C~F(_S(G39_!*0zX875G@6&uM<l7BT&O8nBT*E_~M-g{e?i
`z_mF}RubPwH6`{@CCn2yk+^f*05&(cX^_v26LHToI7L2uGqG;o4{UBiUxtO=e8weC$k{L-qul@wV}II~lC`acdE-Z=
""",
    "grid": """
c-rlq2~<;88pkhT2?>iRN?2SXRE5ftum!}3Kmd_d0@Mv-Bo7D#f+4u;={R*?N2trOI*QgEWL&VtqSm%*ty;9MRMf#`T&rW%dd7M>-+g%maBzk>bDTMI&
iBiC<e&dt-gm!ulic&jIoHwB*@B!Pl-|UG5J3T`vGF^J6(Pc7pq-)*5lir?P97?!b%cGWPrO+j0D2Ya&T41S_Mmy7FM{?24Q+)lX?17|zWYnAEocv0+7
^7M<MBt%r+PQ%LkvCRIG^e)&bJ2ri1Vp_&G|Nj^s3-|syA~!9|jk}`BW!zKAgXIGv`zNl=B6I^jX09RIlNDAt7Q3=TkkD`urU<Ht{9UM*dD>M@V1VzZL
jYr-F{+S3zD#-{qkDLmdauwOk#l>$p0OpkHxyx<LB+g62UTs=YuD2Hy#^3bZZwROf*n0)AJ}pK?CcRb2gUpzndU1E1<=pk?4Y|Hc76TsN<Q)F%aS#faA
g8XK>k)w!Tucn$P=dCj0>hd6tHUJN=G`f&k$mR@)0hw3KKk>HC6d9NoSGYR;hH-aY7(AE|7IM5NG-9gjb`ha!=eH3&bI+I#rLya0WYSgIz?=_+81o}Nn
9EU05#954?RI4u*2m1$#(-|G3E@i~hU|;d@vSLOY80sqylt{x!C$XmAs8qo6$*KmPr*KOLD;ffKS_^iO$JSx-<__L+lV`(*Xl?G4F7`}ypRjGAY|6ML-
}60bXGem{GfynuR*^kC)Xi<giIr8q{^oG##;g+CyE0w+xyn!c_-DpWeX?a^_Ohs(xu?Dzd0^|Ub5$bMXrsVQ%3NIWMbW%7+0&m@Z;#pC*SYx)Q*?Q9Wp
hf?fvhO?rU~gQtFBDk{P0+Lm&1deFPJ}kWKDtc?DiegchA~)FLeB=efxS?A6%NfZR(4As`AJ=JzUPS;Z30nGj?@m8m#5N$e9H<NFJ9Ssx8gwVOO8*LA5
oPW2$YqR8bA9N%o+cu4ZjH4XZ}>pjt=}1VIo4K@bE%5Cr+(&~jsg*V!8z@9ZYVf)8hX)xV$L$t#8%r#|NE-5Z~~2LGfgkL><CQG_{6%g%=BxbEPKyV=T
l<6`=Mefqn`n#YQ7*462&W*?3FX0z{@y*GzlSu&u{tg`#gT|cfFe_>0dGV_;luk(K>I<i`;9VndC>tNc?51lPu&rKdax?=C`BWnhBxfZ<dfi(Z>;&8VI
FDk~?J#S82<lon8%c;>T4m^S|6Xv+`&0$(~Hq1l&g+h-W<$H9emwGX>^)p^x*q*A$I66CX?ZTAIrs>Z&B_FWJ+45<X_vNyO(Wm#OT0Qd!_0f(vv(hrJd
hnDV8mf<Pm>6_Nv+GBt;oikX0e*EKEnXd1m~gE&<}cOqX_wA#ytG^}@#j6E4<klQ+)A@~c&;eY9Hw<=!>sJ)va2z}xa0n{oqdYx99)C^iekU4&Jh)?pX
s^bdQC#YB13J@u+rOKuAMtcZnI>qbU;qi`W1->#?8>4?Wg&=VpQVO+FpYuKRSDGi(~!Vr1@)C?N?u4urQ+R`e^GpOBN=Ks?9zAhdmytLw>z~en2yX`S^
?|${eOmXT$t=FI&Ush0Csml-&){L|^@4m&2=+jH}yUU3}kLmyvXGPe{blil!+~|NOz$AzeoZ?6Qj9ACy`4_`<T#CY!};R@PSDfH2)kMBB_^@;e*mI}2(
2r9at)d_SaXgZ}d7&9UKQ96$N|DGl>(s3_JPrfp}#j7wUx|2_SW8%r<st}ndbP<Y~_&!&#@c(HEVXUboyGSe<^TV25vPU`7%@UOSN+MP1f^FNv-w;)Wr
N1}Lhn1arR$<6ICJ2%vfkotUg@nKl{q?_N)Q?2`(LebB6<o@k<GcMGB5ZP$-kmQbTTsS-Xxc~XVuM|TMtIJoo+}4Gc+&TGsnZu)L_U^Krlw)=BeyfV>U
!JQ>JTc#A@5)<65yqbyH%(6NHO*m-lPur?gc)2bsy2ry>};6t`n}zL{1B$)6HyHtq>$J{xUNJ54_o-4=dm|vh45?v4;#Hfo2M-%{G9wkl~J8%5(XxhxT
%II;#4ui5>*+|Nh+BnP!*(-hKB~Kf{A0hB8mB%guB<=o4c`0@4CCPABJ$AEVZtTDJ2f06xyOe$*Breyg{oW0(b=_5`Ss?PAu5p4ZKm=23|@0C2hXA*c<
n6J=MrgpUUCQ%5R=(IpI!3v*yCxTDQrHO3I8?5}_(itJAS(CHyF((a^RfJtEyhn;-Oy@#FfirES?aVrw7vr8#OHqsmq181;sZdud0<y$IDBjY^-JTgn(
a?gK8Yj>$2qi*p#R8#^|8cA)Ld-B_0uYmKG<Gzyw<YcApTN`+E9No~-oC+KLmHt;%2ZD`lb!o|sgO<QmFs?lFqa0ie6vW7m_!*LcoJAM^BcC<X8ynt8F
Yk+C&NV*Uw(v@^0&d{bi`x_gp6h&47z2@yAh4~qqs#IkK`b)#Pf!ebJwI}q)IV}TqFxBJ!3Dxm{<I__!)8xv@YGc0AXei4umKhjfYzj=2jtWdBokOjjf
HTt*6e_7uAfTlw>LNz&*)rce!KD*W9xMSxXT3a#s?3rS#*oD18q@UJVq>z=P%8KKlLFx(68{i*H-^f5LqbBrWg&t7A>m;`K|wyyDoH<?F{Eqr^0^i;A{
O7^;9yypB+y?X3xk%lYMMb`0P_I`FOQGONK+|Ol&J{{t{_cqP!~b_&>)#qB9Zw^!=$vAw>)Tf%94D>z{Kb^jNGqfq^ax&jGSg#6|YcbCQ+YF2n>@cril
lqHKA=?&QTlHaau;F0Y{J;Jv=rhqt#<GDiD}on-WVWg{Qe7V`>Q_SHz`cs1i~#q@gBXTa=_NHOjp`X}UdqJ!$?u=^)rxIy_CAAlrmwa*`QC9;0Es(sot
b7qt4^bZBF=n=~emz3v@NyMHXef3P74f*=TjAP9mW2!bF8f*=TjAP9mW2!bF8f*=TjAP9mW2!bF8f*=TjAP9mW2!bF8f*=TjAP9mW2!bF8f*=TjAP9mW
2!bF8f*=TjAP9mW2!bF8f*=Tj{1>s9Nw-k9g1-cgmhID>OdC)qGe)&WZB+Y9-m+!9HM^rbyQe$5i+c~^LPVrnfU&3~AU`-DCm_$D)%fRYa*0ihBCc(7V
!>-5JYq-p+ZLPl&?a_t=WKCSo<Uz$(xxK6intTomL1iJ6|L1;{CCq4RBH
""",
    "grids": """
c-rlqO>A3P6~~XA#E$JWO{SfGB<+mHZD;xsr?!(x(}J5ec0M|jHc^vC147s@_Os)X#O|{*9Tw$dfv8x_gar#U8%7K>qE(>?#I8tyU|4{Z3IQV)P$3ow7
F56nu^7&IKK^Q*Oa`V%MgQN^>-+n>bMHO(-uIQ0I<K>3hl74b!c*iR@?2*1iHV!kO5`13-8K3HYGM0NS)V@>6(8@@VyDBlK5pxsw%)<IgSC_OH0uCsF6
+G_E?k!FJy*1>=+BF0JNxu}S?!|V5beGpG4y<gb&2C~6ZO8O@wiwY(s<aX_cK~n^sB7*aJ!-{ji-(E_cb0V`>w{r_G9mAS<!!zvTSFcK2p2rF12$EeTU
U9dRXo4tY_3NI;nOK>sQn+`nuS;UsCpK+OH0x;8(O?KGr+6UtZSBT2}Nm?H88~8rm;zEBFoV7uO$rNBhO~MBmY}qJN|Da9h#8s$KMZYTrh5dbip|Kd1I
i)+1^cJ+1cbtg~tteO3F#b)J5W^~>&?ypKkBOsSRaqB%Yqao?hD-b}JS$UaZ7UQ!>?1@+<MXyn`K!{agXOZ5>geTlNqlSF4^tOD$_i}jHDh(4u0+@~{F
)n^auud;TskLcG~f0XTeSxcSmY#04|)~DItLv(h(+C?8y|6bNI{yw&gmiSMwecyWu+xM~k>td(N#C4qgt;FWMW9#3s-sN1E<NxeG?Bo0vpLsOO$19C-J
$!DBp3^u*zo_l{S$|RE5&fFR`3&n{s9p50)IUHJ>()3$@6$LB)Wvy#?Xw!^LDpZ=I7Ppzaq=9--qbjG3}WBYIG<(xPmNRbzqDOGcH$>A9?>HjC!aU*Yi
bw$1@%9|`iB~)=$~txN9*D|%1yRtoX1$7(l|w*);Reb8Jp8M`Q#l-vyO2+LDp}}`NH*x{;qwD-K2ije<Qj^Y-jx=)-=jx`Fi%_LDo~O!>m8Y`UvX**57
0uWF2DtYu5W&M_B)zb+23jD=|YuLqj)cl4laR?o;PveB3{8TE$#`#Xr~|@n1BTOrvP}!-IYP7gkqHe`Ki79|?trX^Y66_9G%%>_-D_%6^1$*bdUHL-#w
hP;13+t!#JMpWCXH%EMlZt=jD}yziAyrjp5I_Fk%s-Q;2{_Ji^yU_TC&TWNWpU>#b!Q{xidLI3~&00000008*^p^{OMpZv=ig*9U)v%U~&CFfCky}G}p
y8m|acD9hZ-$pHecKEc84qo@rZeFA&r(MF!TL&+$yp_x5R>+-N{8XZ3WXr-bGqg7`86Qu?CSOd<jZP&_gd&N7MEK-TBr!;x4ZA|sQ0;IU(kmgmv2uFF{
XlxfMYZ%wd&O_V^h&FCwo6knb?FteIw&oFq@UPzPFB+__U~2f`ZlAIW@)2Zn#EO}0Q<LDcDth6wUeSfI7R^g00000004l;gi2<ijUGs&nC-^(%;ZASLE
WEq`m27fs^7g#*TPzQCOMN`Ple3e4syNe*kAQ?SN#f^`wQ*q>&ffcWcpt6o}0RNJHA!*Yp?osrPj<DV?7gExScK}3vTkH9jjG8Pu1^!s@=S9OlFeiJ)<
kL=A`bOjyG&C*N2ww87ilHPW*@Io{s-2-Q%rx+DjiK-6OTS-#0B&N%#1umhS1GTDoT&)zUqkR7>}4$GHLk000000000yCR8#DKH6Hkr-QbZ?%76LOZRl
r*3v!O>CvTodLK&ngu~^0PdKu9!l$xv*x#4hW9Lb@rFmm%)hv?lWAWVbsaW2yiY9qjvpv)wZmhy#f6uwW)x|p0AF8Wg6EGVz^U@ZZd7{y^Ni(iZn(^2n
j^|c3Z)9h^W0NM@H*4ahEj6*L-toaE)<_$WS>L4@H`n~xsY_$C<V}p{mX_?+$bGg{vg%99I?^-rhrjHL1+@<O{+i1UxmHI<F=Z^7iHwmd<*nwmG|;>ju
aQnC@|jH0EH$r#56mSqRWepmrdH##M@>#tU$vUH)s<YSxM>tJ&}}-<9kcOS|I3DzGZvPlS{HwwH>`$Yj$K_2d)UhVkxsseuB%i2qJwPj@OqbRKKCtNZd
4ZDf7yA*xlY}*gXeZH^-wSE<1+hsaZ;;vN#@$Zd_9W!a@l8>d?R01r~JhW+1}yxF55PmuP6C}`84_I84Az=E_0BVHq6)mXughBR;T<W582+~^)A~so3C
f-IXX;7=qQ&t#tYx(uB0BCExvb+P0uFgBmLo%+RYBTn{prTsCIK(*-yV(+`PLJ7pE`HL}#xWrN!BjwVEoeTBdjGLOjuQN7*=G<<d2qM~xTH#S>w#$0K_
$7|UifP`)Dt*d`bD=pYNZi9`ojTq+byYs$=&X7ag}()p5Aj2;e#heKuh%bUKFjh~Nj!KwUJ)4G_;E^48N$^@Gfnz8bi`LN(oh)%@jW)c%)(;Dft{rC`-
kxER&6PKpMZg+?yHCJTd*isvidaGKDk};k$m(pzUOpm@W7MrWt>=E&Js-MdPBS&eVx?}Fs1v45Szc80LcVR9(RJP}qr*g$o^l(5%EYKH_5e!II>{yyMQ
x{}iNM*};)5@A@+g5CFZQN0_SEjS>Q>0;X<u+ZN+TqI74s9^C&o`UaO=k7^&~Tmq@X3>dn@{Max$|uOcz(r<<<n*~I5412Glpd>bA_S44Hl_wwy<bg<&
xpZ<9h%++<2r}<5yB2Zqt!Ra_mLwu0o9$oU+Y6xSCzE9^T=_4}<^!000000000000000000000000000000000000000000000000000000000000000
00000000000000000000000002M2gh+uUZLK~{}Qj2*Qa-tUm|?oEE#E|Wb}tNcwxN9exG}7x#7M+-L%7gpZimEi25i<{j}qFX}NHGaqxKRc-G3Li~Wn
~47p<Q@%sA6;an#t`Q#<a{_=~F$tSNv_RnXn{A!`*=ya~LYa4mD;_PtWqA)jRzmJ_-#iw!S0JX~dydT{4Z?jV8cK
""",
    "swath": """
c-rlq&2JmW8OGnGB$6xBvSKH)liDq<#_^X-iK{Qm4dF<p<&Wya6=^v|0w`;7V^fewfn24DQ5QKCD3G)X(o@k>PlbX2J++5IJ``=y-mHJ1=&`3B+FOBsJ
TtpX?NTet2L&jQ=eHQ~*>~P~=iQm*Xn2~Qj$?-WNfcifL&RKxdOPt%I-vgu{SkDRNcV!TQ_z3$wJCB)`S+wgmsdqT{ugv-YE$d~K);^)Le7Z%_zLuC_`
C-FmhYqV5_ADRXQ6)%-4CC0&`*3HrGE$gE%=;={x@_MJ{SJ$1D^{bKRE^axU9%U=(1{?*wXq<=)S~LNkG@2dl6><`UlVxh;u0v=MwC{@#Ey6|L(_8`X7
FrPLWU2ew;z*6VO)>XDAeB2=)a(P9FM4ejKGgR-=qKN$Ai0I2QD8p)VuOa460&?Em!RjEH=C!H=VKPK`O@AeT>H_v4I0&p_u8XAJrgbOv#h{vq^L*vFy
&Ao5sX9~YwsTBgwUvKU7&uQCIj#nf&?k3gTsJpLIv5B&{jOXZI^{m^%y(}<(A8s|~izX`3LF$ufUpFxkQw<>rpYHDg~YU;0?7PWs+dlBimS)9%;I*n$v
UdxW;tn7lb>ex*un;#j--rlG=S!-+{YYpWu%k%TbUqvS0LHQ*L^i&1~JE*B53hYzgNBIclXDINQ`Zdb$(e6X|W7jhI2?}<CQ)*Li5(S-4VK+6kj)EP;)
K5`<f$}R9?9i^NcJQ4<{UmIYe}ldE|1Ou5^vFwc68n)0*n?e`t1>OKQkJ*mKIY?)9F>=`=Q)dg-l)7T*W|W*N8Xer%v@TINS~a-ZuTN}X%q5>+>klBD{
sp(cElMuCa++JbPhYgF)2t<zAX##U3mvHY)Y>j$A0<@cALX;1*zSX`L<ltox(sChMdsvh9SvCdv(KUO4?qn*B)Fc-4nA|U4wBbm)Gtceh~wEtnQFs5`I
Iup_UWqdPWDPz1*lboBQ>U2|LDgk$6TIsrz=VvR?;1J8m)IMSp1wJc$=NQ!19S@7ay2eSg(a8%^9V+Kot9qbqCZyi$4yR^)}C=wCJJa|>k~wp8j1T$`}
3B(|`hJ|u@Ra~-I80TI$Owp(>KDvo-h#+Q-Vi$T%9vDD`l$~J6qnH_`Ai?}+)oWZ0YY-)YIh8E%Uj)#l>>8C!oP_|)9>lDLD9?@y`!S6V(q;xdw%7G?m
=;T)Ly+hHzKh@_J$~J7twh?<7^{?Pci{b7{11s?L`O?y&mCH}~?{G%H#~Jmz3GS0KcdwV^u;=Hm)smWY-AEW!ZY<2-y;CTC&vqY{+{VVTyU}pEP2YNNv
V3zX-))+@e$HNV3jL*f{V;eAc;}s(iVcf7KXv>1wepTlH#E)Gz1Q6PLiX#bQuUEj7*+E6TyZJB{VuB&8&xeNp`hb?2DM^?4#x#mU+qv#YtNXfwW`=XC~
cNmdp+LOtMH7sY8B`GJ)6YUdNntk`gGM<t%M#hF!@sv+<K1}ED+u!7H!uqf3WTpiqmuDrRkaZ$?|Y(sAsB8w{XrM<$+)h&$kUow6}Jn6_-M=5*&OER%F
ydW8;rJx@sS-mMwU5gL^MotOs#v-kK}t$J&zAZ_dDexwiGU%WB1C;XZE;UgvxF86BYTczBjsr}4n4Xj?Pl8m-u|2dhQM5?xjNsc2LyJGRgiMeLsKPQ6-
l<D7R_bPFMb5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@4iw|DIzqh@e+4Bt
KE2mFV0hMX?TYQ%xuN(I)W!7Ak`J!U)TTa5{)ilvm*j+eO-{-wIX397tq(pN8C)K0s&kQZ4=e9V@>+2^a=v^b@ig&N64EJ0Z#ebU`m*g->$R+R+OizFv
2d%HU3}1}Z>+bsNlID{sbie?aaJixR!&QzbWghUq0KwB;Od9INJNggPv2=c&E`hK2`Pz=gP|LFDhbtxXHV$n30QE|#8{KAxw`8#+uL@iXTZ3rr|5s4=M
YKxU8yWj_*o_w?bQuLPwUgKuiy#QiP$g><??OGqO(^+eo6R6W<v1jdv{=ZXL|3~!)sy3m@X2}=pv;~5#O(ab31M^;T7RY%#@0y?0a^jYTsW~)0f2kqTP
suHM+8f&MT#dU_~wlCGi9f>T?Ta8@819y2HMb*upD#M$XCw_*}%5kaTdsyn3R>myua6D9AwHBeNVb%f)7P2|hVoonp4moj<VD`g#p5!s+G11*xR;=N8H
~Z0TUNXeD`Gr-@YtwRwCKIvRH6Koc}{aw{^T3c5A*=N8H~Y{|9}8%F&IuCy5Lt~72Ir?1bKmKLpCe!_o;Gx|NwKxbM@=wZ)q(P=cXjK!~?v1i4b(KF>u
Q`gVgYfhoRbg#d4N<H3rr>0`7bMAvP?gN`{Xqv5iuetYy?AKML>LaHxs-!wwKEC}fs}&nnEhM3!<9i0RVuKFH1yx_|P)uvjn5wm^*gYt1mRWl}-qow{j
JIkP=lwmK#MOE=_>ZO6?9c-SCVwh|Tkr9L1;TqowdR*USa%A=>ACXK^vwKZdAK#yGu5VBIOmV@Krn~r+Xf`sTf5PUOCeYZ4n7AfGHRi*@kbtAwU1WI7Q
DH^y_YQ3gSa$r&6V?GZAt1kXJEfv+xpvOwc@gHpEn1u^S%4DV*8wk>oeGL^v6Bs-aSl2-}TUldzM+J@xZBg`;3Tdv|`5|tVbbBblvhNyHTy|*g`Ks#O~
Sd)T=c&&Utr5H+SlU5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@2qA<JLI@#*5JCtcgb+dqA%qY@zFHWM)e-8
Q_$w&E@#($Z@xQZ<YgcU7&JD$%pf09=mV9t+rZ)9i^5<nh2E~$58Iy52Ht4Rc4?Y|jTpnzyQ;TyCEALA3T5&pZzWo0Hshr$M
""",
    "old": """
c-oE8&q~8U5C-sXCzXOoD2T;_$b!X#6fq%6Pew$7C|*2>h?l5)sKizhMd-ytpQ64%pTUEFs$TTu-HUIcGt)dk2PXU$c6XL9zBg-7gVZ7nf4{g-=@|r=W
%fKS)tl@JJ*l_Zb$V4Fvu9|ezF<$$o4U=e(u?|<Jxw3#p6+>9-|L+}>OQ+c-|C@QUh`MhMCQA=`8@pHox~owyl8hjHd+nsq03xaI2%MwyLa1hHr#01a4
l$I;;O>O92T&I6$EG@MuG!VuNj@_>2yh|>?}QV8S?I30qo-nNFpTbyvsmNc&MDG`3-OaFa8}*h#v=14_l3L{W)H1*!)8zd<k8`mXIY}301<>5dQ&uWLC
-
""",
}

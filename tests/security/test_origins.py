"""References of a remote set keep its limits in all sets that the user makes of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

import refshard_fs
from refshard_fs import ManifestError, RefShardFileSystem, SourceNotReachable, TargetNotAllowed
from refshard_fs.cli import main
from refshard_fs.core.model import Span, add_origin
from refshard_fs.formats.kerchunk_json.source import parse
from refshard_fs.references.reference_set import References
from refshard_fs.security import admission
from refshard_fs.security.admission import Access, Admission
from refshard_fs.security.origins import NOTHING, Adoption, Origins
from tests.servers.http import RangeServer

pytestmark = [pytest.mark.filterwarnings("ignore:sets that are not yours"), pytest.mark.case(id="P12")]
SECRET = "HUSHHUSH"
FORMATS = {"json": "out.json", "parquet": "out.parquet", "chunk-manifest": "out.zarr"}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [1],
    "data_type": "uint8",
    "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes"}],
    "attributes": {},
    "dimension_names": ["t"],
}
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let a test choose whether this machine counts as a public server, and change that after a set was saved."""
    state = SimpleNamespace(is_public=True)
    monkeypatch.setattr(admission, "_is_public", lambda address: state.is_public)
    return state


def refs_of(url: str, **metadata: Any) -> dict[str, Any]:
    documents = {"zarr.json": json.dumps(GROUP), "a/zarr.json": json.dumps(ARRAY | metadata)}
    return {**documents, "a/c/0": [url, 0, 1]}


def put(server: RangeServer, refs: dict[str, Any], name: str = "refs", **more: Any) -> str:
    return server.put(f"/set/{name}.json", json.dumps({"version": 1, "refs": refs, **more}).encode())


def test_origins_of_sets_of_a_server_are_one_object() -> None:
    """A hundred thousand files of one server have equal origins, and each object would take 400 bytes."""

    def adopt(name: str) -> Origins:
        adoption = Adoption(Admission.of(f"https://a.org/{name}", None, (), ()))
        adoption.add(f"https://a.org/{name}")
        return adoption.combine_origins(NOTHING)

    assert adopt("1.nc") is adopt("2.nc")
    assert adopt("1.nc").servers == {"https://a.org"}


def own(folder: Path, format: str = "json") -> str:
    """Save a set of the user, with references to one local file; return its path."""
    (folder / "own").write_bytes(b"o")
    out = str(folder / FORMATS[format])
    RefShardFileSystem(refs_of(str(folder / "own"))).save(out, format=format)
    return out


def convert(source: str, out: str, *_: Any) -> None:
    assert main(["convert", source, out]) == 0


def edit(source: str, out: str, format: str) -> None:
    """Save a set, and commit a change to it."""
    if format == "chunk-manifest":
        pytest.skip("sets of chunk manifests take no commits")
    RefShardFileSystem(source).save(out, format=format)
    fs = RefShardFileSystem(out, mode="a")
    fs.pipe_file("b/zarr.json", json.dumps(ARRAY).encode())
    fs.pipe_file("b/c/0", b"b")
    fs.commit()
    assert RefShardFileSystem(out).cat_file("b/c/0") == b"b"


WAYS: dict[str, Callable[[str, str, str], Any]] = {
    "save": lambda source, out, format: RefShardFileSystem(source).save(out, format=format),
    "convert": convert,
    "edit": edit,
    "concat": lambda source, out, format: refshard_fs.concat([source, source], "t").save(out, format=format),
    "rebase": lambda source, out, format: refshard_fs.rebase(source, {"s3://none/": "s3://b/"}, missing="ignore").save(
        out, format=format
    ),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("format", FORMATS)
def test_derived_sets_keep_the_limits_of_a_remote_set(
    how: str, format: str, http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    if (how, format) == ("edit", "chunk-manifest"):
        pytest.skip("chunk manifests take no commits")
    with RangeServer() as other:
        source = put(http_server, refs_of(other.put("/x", b"x")))
        out = str(tmp_path / FORMATS[format])
        WAYS[how](source, out, format)
        again = str(tmp_path / "again.json")
        RefShardFileSystem(out).save(again)  # a set made of the saved set has the same limits
        assert RefShardFileSystem(out).cat_file("a/c/0") == b"x"
        net.is_public = False
        for made in (out, again):
            other.clear()
            fs = RefShardFileSystem(made, skip_instance_cache=True)
            with pytest.raises(TargetNotAllowed, match=r"elsewhere \(http.* may not point into private") as caught:
                fs.cat_file("a/c/0")
            assert caught.value.key == "a/c/0"
            assert "not-allowed" in {finding.kind for finding in refshard_fs.check(fs).findings}
            with pytest.raises((SourceNotReachable, TargetNotAllowed), match="may not point into private"):
                RefShardFileSystem(refshard_fs.snapshot(fs)).cat_file("a/c/0")
            assert other.requests() == []
            assert RefShardFileSystem(made, allow="any").cat_file("a/c/0") == b"x"
            assert RefShardFileSystem(made, options={other.url: {}}).cat_file("a/c/0") == b"x"


def test_copies_in_a_remote_set_keep_its_limits(http_server: RangeServer, net: SimpleNamespace, tmp_path: Path) -> None:
    """References that the user adds are the user's own, even if they point to the same server."""
    with RangeServer() as other:
        fs = RefShardFileSystem(put(http_server, refs_of(other.put("/x", b"x"))), mode="a", data_url=str(tmp_path))
        fs.cp("a", "b", recursive=True)
        fs.rm("a", recursive=True)
        fs.refer("c", other.put("/mine", b"m"))
        out = str(tmp_path / "out.json")
        fs.save(out)
        fs.discard()
        net.is_public = False
        saved = RefShardFileSystem(out)
        assert saved.cat_file("c") == b"m"
        with pytest.raises(TargetNotAllowed):
            saved.cat_file("b/c/0")


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_appended_remote_references_keep_their_limits(
    format: str, http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    out = own(tmp_path, format)
    with RangeServer() as other:
        source = put(http_server, refs_of(other.put("/x", b"x")))
        refshard_fs.append(out, source, "t")
        together = str(tmp_path / "together.json")
        refshard_fs.concat([refs_of(str(tmp_path / "own")), source], "t").save(together)
        net.is_public = False
        other.clear()
        for made in (out, together):
            fs = RefShardFileSystem(made)
            assert fs.cat_file("a/c/0") == b"o"
            with pytest.raises(TargetNotAllowed):
                fs.cat_file("a/c/1")
        assert other.requests() == []


def test_saved_set_keeps_its_limits_as_a_piece_of_a_cube(
    http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    with RangeServer() as other:
        saved = str(tmp_path / "saved.json")
        RefShardFileSystem(put(http_server, refs_of(other.put("/x", b"x")))).save(saved)
        document = str(tmp_path / "joined.json")
        refshard_fs.concat([own(tmp_path), saved], "t", lazy=True).save(document)
        eager = str(tmp_path / "eager.json")
        RefShardFileSystem(document).save(eager)
        net.is_public = False
        other.clear()
        for made in (document, eager):
            fs = RefShardFileSystem(made)
            assert fs.cat_file("a/c/0") == b"o"
            with pytest.raises(TargetNotAllowed):
                fs.cat_file("a/c/1")
            refshard_fs.check(fs)
        assert other.requests() == []


@pytest.mark.parametrize("format", FORMATS)
def test_credentials_stay_away_from_servers_of_a_remote_set(
    format: str, http_server: RangeServer, net: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"Authorization": SECRET}})
    with RangeServer() as other:
        source = put(http_server, _two(other.put("/x", b"x"), http_server.put("/y", b"y")))
        out = str(tmp_path / FORMATS[format])
        RefShardFileSystem(source).save(out, format=format)
        http_server.clear()
        fs = RefShardFileSystem(out)
        assert fs.cat(["a/c/0", "b/c/0"]) == {"a/c/0": b"x", "b/c/0": b"y"}
        assert SECRET not in repr(other.requests())
        assert SECRET in repr(http_server.requests("/y"))  # the user opened the set from this server


def _two(a: str, b: str) -> dict[str, Any]:
    return {**refs_of(a), "b/zarr.json": json.dumps(ARRAY), "b/c/0": [b, 0, 1]}


def test_redirect_of_a_remote_url_to_a_private_host_is_refused(
    http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    """Here, the set's own server redirects."""
    with RangeServer() as inside:
        out = str(tmp_path / "out.json")
        RefShardFileSystem(put(http_server, refs_of(http_server.put("/x", b"x")))).save(out)
        http_server.fault("redirect", "/x", to=inside.put("/x", b"s"))
        net.is_public = False
        with pytest.raises(TargetNotAllowed, match="private networks"):
            RefShardFileSystem(out).cat_file("a/c/0")
        assert inside.requests() == []


@pytest.mark.parametrize("format", FORMATS)
def test_saved_set_is_read_from_its_own_server(
    format: str, http_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set's targets are read with the user's configuration, even from a private server, without an option."""
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"Authorization": SECRET}})
    source = put(http_server, refs_of(http_server.put("/x", b"x")))
    out = str(tmp_path / FORMATS[format])
    RefShardFileSystem(source).save(out, format=format)
    made = refshard_fs.concat([source, source], "t")
    assert parse(References(made.columns).to_json(), "", {}).origins == made.columns.origins
    http_server.clear()
    assert RefShardFileSystem(out).cat_file("a/c/0") == b"x"
    (request,) = http_server.requests()
    assert SECRET in repr(request.headers)


@pytest.mark.parametrize("made", ["save", "parquet", "chunk-manifest", "document"])
def test_pickle_codec_of_a_saved_set_is_refused_unless_allowed(
    made: str, http_server: RangeServer, tmp_path: Path
) -> None:
    old = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "order": "C", "fill_value": None}
    pickled = json.dumps({**old, "compressor": None, "filters": [{"id": "pickle"}]})
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "a/.zarray": pickled, "a/0": "base64:AAAA"}
    key = "a/.zarray"
    if made == "chunk-manifest":
        codecs = [{"name": "bytes"}, {"name": "numcodecs.pickle"}]
        refs, key = {**refs_of("", codecs=codecs), "a/c/0": "base64:AAAA"}, "a/zarr.json"
    source = put(http_server, refs)
    out = str(tmp_path / "out")
    if made == "document":
        Path(out).write_text(json.dumps({"refshard": "concat", "dim": "t", "axes": {}, "sets": [[source, 1]]}))
    else:
        RefShardFileSystem(source).save(out, format="json" if made == "save" else made)
    with pytest.raises(ManifestError, match="pickles, which may run code"):
        RefShardFileSystem(out).cat_file(key)
    with pytest.raises(ManifestError, match="pickles, which may run code"):
        RefShardFileSystem(out).cat_file(key, start=0, end=9)
    assert RefShardFileSystem(out, allow="any").cat_file(key)


def test_origin_record_grants_no_rights(http_server: RangeServer, net: SimpleNamespace, tmp_path: Path) -> None:
    """A stranger may write a record, to pretend that the set comes from a private server or the user's bucket."""
    with RangeServer() as inside:
        url = inside.put("/x", b"x")
        for forged in ({inside.url: [inside.url]}, {inside.url: []}, {inside.url: ["file:///etc/passwd"]}):
            net.is_public = True
            source = put(http_server, refs_of(url), refshard={"from": forged})
            out = str(tmp_path / "out.json")
            RefShardFileSystem(source).save(out)
            net.is_public = False
            for made in (source, out):
                with pytest.raises(TargetNotAllowed, match="private"):
                    RefShardFileSystem(made, skip_instance_cache=True).cat_file("a/c/0")
            with pytest.raises(TargetNotAllowed, match="private"):
                RefShardFileSystem(source).save(out)
        assert inside.requests() == []


@pytest.mark.parametrize("forged", [[], {"https://a": "https://b"}, {"https://a": [1]}])
def test_malformed_origin_record_is_refused(forged: Any) -> None:
    document = json.dumps({"version": 1, "refs": refs_of("x"), "refshard": {"from": forged}})
    with pytest.raises(ManifestError, match="'from' of .* is malformed"):
        RefShardFileSystem(document.encode()).find("")


def test_rebased_targets_are_the_users_own(http_server: RangeServer, net: SimpleNamespace, tmp_path: Path) -> None:
    """Targets below the user's prefix are the user's choice; a target outside of it is still the stranger's."""
    with RangeServer() as other:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "x").write_bytes(b"m")
        (tmp_path / "x").write_bytes(b"s")
        source = put(http_server, _two(f"{other.url}/x", f"{other.url}/%2e%2e/x"))
        for stem in ("", "file://"):
            mirror = refshard_fs.rebase(source, {other.url: f"{stem}{tmp_path}/data"})
            fs = RefShardFileSystem(mirror)
            assert fs.cat_file("a/c/0") == b"m"
            with pytest.raises((TargetNotAllowed, refshard_fs.ReferenceNotReachable)):
                fs.cat_file("b/c/0")


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_reference_filesystem_of_fsspec_opens_sets_with_a_record(http_server: RangeServer, tmp_path: Path) -> None:
    old = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0}
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps({**old, "compressor": None, "filters": None})}
    source = put(http_server, {**refs, "a/0": [http_server.put("/x", b"x"), 0, 1]})
    for format in ("json", "parquet"):
        if format == "parquet":
            pytest.importorskip("fastparquet")
        out = str(tmp_path / FORMATS[format])
        RefShardFileSystem(source).save(out, format=format)
        fs = fsspec.filesystem("reference", fo=out, remote_protocol="http", skip_instance_cache=True)
        assert fs.cat_file("a/0") == b"x"
        assert sorted(fs.ls("a", detail=False)) == ["a/.zarray", "a/0"]


def origins(source: str, urls: list[str], known: Origins = NOTHING, **options: Any) -> dict[str, list[str]]:
    given = {"allow": None, "protocols": (), "prefixes": ()} | options
    adoption = Adoption(Admission.of(source, **given))
    for url in urls:
        adoption.add(url)
    return adoption.combine_origins(known).to_json()


MAKERS: dict[str, Callable[[str, str], object]] = {
    "json": lambda url, out: RefShardFileSystem(url).save(f"{out}/a.json"),
    "parquet": lambda url, out: RefShardFileSystem(url).save(f"{out}/a.parq"),
    "concat": lambda url, out: refshard_fs.concat([url], dim="t").save(f"{out}/a.json"),
    "rebase": lambda url, out: refshard_fs.rebase(url, {"http://no.test/": ""}, missing="ignore").save(f"{out}/a.json"),
    "append": lambda url, out: refshard_fs.append(own(Path(out)), url, "t"),
}


@pytest.mark.parametrize("made", MAKERS)
def test_derived_set_warns_of_the_servers_of_a_remote_set(
    made: str, http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    url = put(http_server, refs_of("http://elsewhere.test/x"))
    with pytest.warns(
        UserWarning, match=r"on other servers: http://elsewhere\.test\. The result keeps the limits"
    ) as told:
        MAKERS[made](url, str(tmp_path))
    assert len(told) == 1


def test_convert_reports_the_servers_of_a_remote_set(
    http_server: RangeServer, net: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        convert(put(http_server, refs_of("http://elsewhere.test/x")), str(tmp_path / "a.json"))
    assert "on other servers: http://elsewhere.test." in capsys.readouterr().err


def test_save_without_other_servers_gives_no_warning(http_server: RangeServer, tmp_path: Path) -> None:
    url = put(http_server, refs_of("../file"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RefShardFileSystem(url).save(str(tmp_path / "a.json"))


def test_origin_record_names_servers_and_the_set(net: SimpleNamespace) -> None:
    source = "https://u:pw@home.org/set.json?token=x#y"
    plain = "https://home.org"
    recorded = origins(source, ["https://home.org/a", "https://data.org/a", "s3://bucket/x", "data:,x"])
    assert recorded == {"https://home.org": [plain], "https://data.org": [plain], "s3://bucket": [plain]}
    assert origins(source, []) == {plain: [plain]}
    with_login = "https://u:pw@home.org"
    assert origins(source, ["https://u:pw@home.org/a"])["https://u:pw@home.org"] == [with_login]
    assert origins("/home/set.json", ["https://home.org/a"]) == {}
    assert origins(source, ["https://data.org/a"], allow="any") == {}


def test_origin_record_excludes_user_urls() -> None:
    source = "https://home.org/set.json"
    urls = ["s3://bucket/mine/x", "s3://bucket/other/x"]
    recorded = origins(source, urls, prefixes=["s3://bucket/mine/"])
    assert recorded["s3://bucket/mine"] == []
    assert Origins.read(recorded, "").of("s3://bucket/mine/x") == ()
    assert Origins.read(recorded, "").of("s3://bucket/mine/../other/x") == ("https://home.org",)
    assert origins(source, urls[:1], prefixes=["s3://bucket/"]) == {"https://home.org": ["https://home.org"]}


def test_nested_origin_records_are_merged() -> None:
    assert add_origin(Span("u", origin=("b",)), ("a",)).origin == (
        "a",
        "b",
    )  # the reference is in a saved set within a document
    known = Origins({"https://a.org": ("https://b.org",), "https://a.org/x": ()})
    source = "s3://bucket/set.json"
    recorded = Origins.read(origins(source, ["https://a.org/y", "https://c.org/y"], known), "")
    assert recorded.of("https://a.org/y") == ("https://b.org", "s3://bucket")
    assert recorded.of("https://a.org/x") == recorded.of("https://c.org/y") == ("s3://bucket",)


@pytest.mark.parametrize(
    "url", ["HTTPS://A.org./x", "https://a.org:443/x", "https://a.org?x", "zip://m::https://a.org/x"]
)
def test_origin_record_is_found_for_several_spellings_of_a_url(url: str) -> None:
    assert Origins({"https://a.org": ("https://b.org",)}).of(url) == ("https://b.org",)


def test_recorded_origins_admit_members_of_archives() -> None:
    named = []
    for archive in ("zip://s.json::https://a.org/1.zip", "zip://s.json::https://a.org/2.zip"):
        member = archive.replace("s.json", "x")
        recorded = Origins.read(origins(archive, ["https://a.org/x", member]), "")
        named += [(url, recorded.of(url)) for url in ("https://a.org/x", member)]
    made = Origins.combine(named, ())
    for url, _ in named:
        for origin in made.of(url):
            assert Admission.of(origin, None, (), ()).admit(url)[1] is Access.OWN


def test_origin_records_are_joined_and_extended() -> None:
    theirs, home = ("https://b.org",), ("https://a.org",)
    named = [
        ("https://a.org/x", ()),
        ("https://a.org/y", theirs),
        ("https://c.org/y", theirs),
        ("https://a.org/x", theirs),
    ]
    made = Origins.combine(named, theirs)
    assert made.to_json() == {"https://a.org/y": [*theirs], "https://c.org": [*theirs]}
    grown = made.with_urls([("https://c.org/mine", ()), ("https://d.org/z", home), ("https://a.org/z", home)])
    assert grown.of("https://c.org/mine") == grown.of("https://e.org/") == ()
    assert grown.of("https://c.org/x") == grown.of("https://a.org/y") == theirs
    assert grown.of("https://a.org/any") == home  # a set may read all of its own server
    assert Origins.combine([("https://a.org/x", ())], theirs).servers == {*theirs}


# Documents of cubes and tables keep no record, so they take over only URLs that the user's credentials open.


def put_part(server: RangeServer, name: str = "0") -> str:
    """Put a set of one chunk, whose byte is 0, on ``server``; return its URL."""
    return put(server, refs_of(server.put("/x", b"\0")), name)


def write_parts(server: RangeServer, folder: Path) -> list[str]:
    """Put two sets on ``server``, and one into ``folder``; return their URLs."""
    return [put_part(server, "0"), put_part(server, "1"), own(folder)]


def write_cube(server: RangeServer, parts: list[str]) -> str:
    document = {"refshard": "concat", "dim": "t", "axes": {"a": 0}, "sets": [[part, 1] for part in parts]}
    return server.put("/cube.refshard", json.dumps(document).encode())


TAKE_OVER: dict[str, Callable[..., Any]] = {
    "open": lambda url, out, **options: refshard_fs.open(url, **options),
    "part": lambda url, out, **options: refshard_fs.open(url, isel={"t": slice(0, 2)}, **options),
    "save": lambda url, out, **options: RefShardFileSystem(url, **options).save(out),
}


@pytest.mark.parametrize("how", TAKE_OVER)
def test_document_of_a_cube_takes_over_own_urls_only(how: str, http_server: RangeServer, tmp_path: Path) -> None:
    *there, here = write_parts(http_server, tmp_path)
    out = str(tmp_path / "out.refshard")
    TAKE_OVER[how](write_cube(http_server, there), out)
    with RangeServer() as inside:
        for part in (here, put_part(inside)):
            url = write_cube(http_server, [*there, part])
            with pytest.raises(TargetNotAllowed):
                TAKE_OVER[how](url, out)
            with pytest.raises(TargetNotAllowed, match="outside allow="):
                TAKE_OVER[how](url, out, allow=[http_server.url])
            assert inside.requests() == []
            TAKE_OVER[how](url, out, allow="any")


def test_copied_document_may_name_no_other_public_server(
    http_server: RangeServer, net: SimpleNamespace, tmp_path: Path
) -> None:
    """In the user's own document, the user's credentials would open such a URL."""
    there = write_parts(http_server, tmp_path)[:1]
    with RangeServer() as other:
        url = write_cube(http_server, [*there, put_part(other)])
        assert RefShardFileSystem(url).cat_file("a/c/1") == b"\0"
        with pytest.raises(TargetNotAllowed, match="take over only URLs on its server"):
            refshard_fs.open(url)
        made = refshard_fs.open(url, options={other.url: {}})
        assert RefShardFileSystem(made).cat_file("a/c/1") == b"\0"


def test_allow_list_of_an_opened_document_stays_in_force(http_server: RangeServer, tmp_path: Path) -> None:
    with RangeServer() as other:
        parts = [put_part(http_server), put(http_server, refs_of(other.put("/x", b"x")), "1")]
        document = {"refshard": "concat", "dim": "t", "axes": {"a": 0}, "sets": [[part, 1] for part in parts]}
        (tmp_path / "cube.refshard").write_text(json.dumps(document))
        made = refshard_fs.open(str(tmp_path / "cube.refshard"), allow=[http_server.url])
        assert RefShardFileSystem(made).cat_file("a/c/0") == b"\0"
        with pytest.raises(TargetNotAllowed, match="outside allow="):
            RefShardFileSystem(made).cat_file("a/c/1")
        assert other.requests() == []


def write_table(urls: list[str], path: Path) -> bytes:
    frame = pytest.importorskip("pandas").DataFrame({"url": urls, "member": range(len(urls))})
    pytest.importorskip("pyarrow")
    frame.to_parquet(path)
    return path.read_bytes()


def test_table_from_elsewhere_may_name_only_its_own_server(http_server: RangeServer, tmp_path: Path) -> None:
    *there, here = write_parts(http_server, tmp_path)
    own_table = write_table([there[0], "1.json"], tmp_path / "own.parquet")
    assert len(refshard_fs.open(http_server.put("/set/own.parquet", own_table))) == 2
    with RangeServer() as inside:
        for part in (here, f"file://{here}", "data:application/json,{}", put_part(inside)):
            url = http_server.put("/set/table.parquet", write_table([there[0], part], tmp_path / "t.parquet"))
            for options in ({}, {"allow": [http_server.url]}):
                with pytest.raises(TargetNotAllowed):
                    refshard_fs.open(url, **options)
        assert inside.requests() == []


def test_table_gives_its_credentials_to_no_other_server(http_server: RangeServer, tmp_path: Path) -> None:
    there = write_parts(http_server, tmp_path)[0]
    with RangeServer() as other:
        elsewhere = put_part(other)
        url = http_server.put("/set/table.parquet", write_table([there, elsewhere], tmp_path / "t.parquet"))
        http_server.clear()
        allowed = [http_server.url, other.url]
        made = refshard_fs.open(url, allow=allowed, headers={"Authorization": SECRET})
        assert RefShardFileSystem(made).cat_file("a/c/1/0")
        assert all(SECRET in repr(request.headers) for request in http_server.requests())
        assert other.requests()
        assert SECRET not in repr([request.headers for request in other.requests()])

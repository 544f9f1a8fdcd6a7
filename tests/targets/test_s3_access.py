"""S3 is read with roles, tokens and credential processes, and with buckets in paths or host names (from moto)."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import ReferenceNotReachable, RefShardFileSystem
from tests.servers.aws import REGION, AwsServer, Keys, is_installed
from tests.servers.http import RangeServer
from tests.servers.machine import MachineMetadata
from tests.servers.proxy import CountingProxy
from tests.support.target_reading import Reader

DATA = bytes(i * 31 % 251 for i in range(3000))
KEYS = ["x", "a b+c%2F~#é&=?/.hidden", "a//b", "dir/./x"]

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sessions of s3fs that their users never close


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsServer]:
    """A store with objects, which only the role may read."""
    if not is_installed():
        pytest.skip(
            "moto, an S3 server with users and roles, is not installed (pip install 'moto[s3]' flask flask-cors)"
        )
    with AwsServer() as server:
        s3 = server.client("s3", server.assume())
        for bucket in ("bucket", "with.dots"):
            s3.create_bucket(Bucket=bucket)
            for key in KEYS:
                s3.put_object(Bucket=bucket, Key=key, Body=DATA)
        yield server


@pytest.fixture
def proxy(aws: AwsServer) -> Iterator[CountingProxy]:
    with CountingProxy(aws.url) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_credentials_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **of: dict[str, str]) -> None:
    lines = [
        f"[profile {name}]\nregion = {REGION}\n" + "".join(f"{k} = {v}\n" for k, v in p.items())
        for name, p in of.items()
    ]
    (tmp_path / "AWS_CONFIG_FILE").write_text("\n".join(lines))


def by_keys(keys: Keys) -> dict[str, Any]:
    return {"key": keys.key, "secret": keys.secret, **({"token": keys.token} if keys.token else {})}


def opened(url: str, **options: Any) -> RefShardFileSystem:
    refs = {str(i): [f"s3://bucket/{key}", i, 10] for i, key in enumerate(KEYS)}
    options = {"endpoint_url": url, "skip_instance_cache": True, **options}
    return RefShardFileSystem(refs, remote_protocol="s3", remote_options=options, skip_instance_cache=True)


def check(fs: RefShardFileSystem) -> None:
    assert fs.cat([str(i) for i in range(len(KEYS))]) == {str(i): DATA[i : i + 10] for i in range(len(KEYS))}


def test_user_without_the_role_may_not_read(aws: AwsServer) -> None:
    with pytest.raises(ReferenceNotReachable, match="403"):
        opened(aws.url, **by_keys(aws.user)).cat_file("0")


@pytest.mark.evidence(id="T10")
def test_role_is_assumed_once(
    aws: AwsServer, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = {"aws_access_key_id": aws.user.key, "aws_secret_access_key": aws.user.secret}
    role = {"role_arn": aws.role, "source_profile": "user"}
    profiles(monkeypatch, tmp_path, user=user, reader=role)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", proxy.url)
    check(opened(proxy.url, profile="reader"))
    assert [r.method for r in proxy.requests()] == ["POST", *["GET"] * len(KEYS)], (
        "one request of STS, and one for each object"
    )
    assert not any("botocore" in r.headers["user-agent"].lower() for r in proxy.requests(method="GET"))
    assert len({r.headers["x-amz-security-token"] for r in proxy.requests(method="GET")}) == 1


@pytest.mark.evidence(id="T13")
def test_token_is_part_of_the_signature(aws: AwsServer) -> None:
    keys = aws.assume()
    check(opened(aws.url, **by_keys(keys)))
    for wrong in (keys._replace(token=aws.assume().token), keys._replace(secret="wrong"), keys._replace(token=None)):
        with pytest.raises(ReferenceNotReachable, match="cannot be read"):
            opened(aws.url, **by_keys(wrong)).cat_file("0")


@pytest.mark.evidence(id="T14")
def test_credential_process_runs_before_expiry(
    aws: AwsServer, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    issued: list[Keys] = []

    def issue(minutes: int) -> None:
        issued.append(aws.assume())
        key, secret, token = issued[-1]
        expires = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
        answer = {
            "Version": 1,
            "AccessKeyId": key,
            "SecretAccessKey": secret,
            "SessionToken": token,
            "Expiration": expires,
        }
        (tmp_path / "credentials.json").write_text(json.dumps(answer))

    program = tmp_path / "give.py"
    program.write_text("import sys\nprint(open(sys.argv[1]).read())\n")
    command = f'"{sys.executable}" -S "{program}" "{tmp_path}/credentials.json"'
    profiles(monkeypatch, tmp_path, process={"credential_process": command})
    fs = opened(proxy.url, profile="process")
    issue(minutes=5)  # botocore renews keys in the last ten minutes before they expire
    assert fs.cat_file("0") == DATA[:10]
    issue(minutes=60)
    assert fs.cat_file("1") == DATA[1:11]
    issue(minutes=60)
    assert fs.cat_file("2") == DATA[2:12]
    tokens = [r.headers["x-amz-security-token"] for r in proxy.requests()]
    assert [token for i, token in enumerate(tokens) if i == 0 or token != tokens[i - 1]] == [
        k.token for k in issued[:2]
    ]


@pytest.mark.evidence(id="T11")
def test_credentials_of_a_container_are_requested_by_url(
    aws: AwsServer, http_server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret, token = aws.assume()
    expires = (datetime.now(UTC) + timedelta(hours=6)).isoformat()
    answer = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": token, "Expiration": expires}
    url = http_server.put("/credentials", json.dumps(answer).encode())
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    check(opened(aws.url))
    assert len(http_server.requests()) == 1


@pytest.mark.evidence(id="T12")
def test_virtual_machine_gets_its_keys_once(
    aws: AwsServer, proxy: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = aws.assume()
    with MachineMetadata(keys) as machine:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "60")  # the default of 1 s is too short on a busy machine
        check(opened(proxy.url))
        assert machine.asked == [
            "PUT /latest/api/token",
            "GET /latest/meta-data/iam/security-credentials/",
            "GET /latest/meta-data/iam/security-credentials/reader",
        ]
    assert {r.headers["x-amz-security-token"] for r in proxy.requests()} == {keys.token}


@pytest.mark.parametrize("style", ["path", "virtual", "auto"])
@pytest.mark.evidence(id="T15")
def test_bucket_is_addressed_by_path_or_by_host_name(
    aws: AwsServer, proxy: CountingProxy, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".localhost") else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = proxy.url.replace("127.0.0.1", "localhost")
    options = {"config_kwargs": {"s3": {"addressing_style": style}}, **by_keys(aws.assume())}
    check(opened(url, **options))
    hosts = {r.headers["host"].rpartition(":")[0] for r in proxy.requests()}
    assert hosts == {"bucket.localhost" if style == "virtual" else "localhost"}
    assert not any("botocore" in r.headers["user-agent"].lower() for r in proxy.requests())


@pytest.mark.evidence(id="T15")
def test_bucket_may_have_dots_in_its_name(aws: AwsServer) -> None:
    options = {"endpoint_url": aws.url, **by_keys(aws.assume())}
    for key in KEYS:
        assert Reader(by_protocol={"s3": options}).read(f"s3://with.dots/{key}", 5, 50) == DATA[5:50]
    with pytest.raises(FileNotFoundError):
        Reader(by_protocol={"s3": options}).read("s3://with.dots/none", 5, 50)

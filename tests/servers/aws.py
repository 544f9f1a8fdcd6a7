"""S3, IAM and STS as Amazon has them, by moto: who may read what is decided by users, roles and signatures."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from botocore.session import Session  # type: ignore[import-untyped]  # botocore ships no types

from tests.servers.child import Child
from tests.servers.ports import free_ports

__all__ = ["AwsServer", "Keys", "is_installed"]

_STARTS = 3
_START_SECONDS = 60.0
REGION = "us-east-1"
_PREPARATIONS = 6  # requests that are answered before anybody has to sign, all of `AwsServer._prepare`


class Keys(NamedTuple):
    """What signs requests."""

    key: str
    secret: str
    token: str | None = None


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors"))


class AwsServer:
    """Serves from ``__enter__`` to ``__exit__``. ``user`` may take on the role ``role``, which may do all with S3."""

    def __init__(self) -> None:
        self.url = ""
        self.role = ""
        self.user = Keys("", "")
        self._child: Child | None = None
        self._folder: Path | None = None

    def client(self, service: str, keys: Keys | None = None) -> Any:
        keys = keys or Keys("nobody", "nothing")
        return Session().create_client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=keys.key,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token,
        )

    def assume(self) -> Keys:
        """Return keys of the role, other ones each time."""
        found = self.client("sts", self.user).assume_role(RoleArn=self.role, RoleSessionName="tests")["Credentials"]
        return Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])

    def __enter__(self) -> Self:
        for attempt in range(1, _STARTS + 1):
            try:
                self._start()
                self._prepare()
                return self
            except RuntimeError:
                # Somebody may have taken the free port before it did.
                self._stop()
                if attempt == _STARTS:
                    raise
            except BaseException:
                self._stop()
                raise
        raise AssertionError("unreachable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="moto-"))
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._child = Child(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            cwd=folder,
            log=folder / "printed.log",
            environment={"INITIAL_NO_AUTH_ACTION_COUNT": str(_PREPARATIONS)},
        )
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if not self._child.alive or time.monotonic() > deadline:
                raise RuntimeError(f"moto did not start:\n{self._child.printed()}")
            time.sleep(0.02)

    def _prepare(self) -> None:
        iam = self.client("iam")
        iam.create_user(UserName="user")
        iam.put_user_policy(UserName="user", PolicyName="p", PolicyDocument=_policy("sts:AssumeRole"))
        made = iam.create_access_key(UserName="user")["AccessKey"]
        self.user = Keys(made["AccessKeyId"], made["SecretAccessKey"])
        role = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=_policy("sts:AssumeRole"))
        self.role = role["Role"]["Arn"]
        made = iam.create_policy(PolicyName="all", PolicyDocument=_policy("s3:*"))
        iam.attach_role_policy(RoleName="reader", PolicyArn=made["Policy"]["Arn"])

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._child = self._folder = None


def _policy(action: str) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]})


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True

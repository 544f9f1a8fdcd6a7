"""Amazon's S3, IAM and STS, emulated by moto, which checks users, roles and signatures."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from typing import Any, NamedTuple

from botocore.session import Session  # type: ignore[import-untyped]  # botocore ships no types

from tests.servers.child import ChildServer
from tests.servers.ports import free_ports

__all__ = ["AwsServer", "Keys", "is_installed"]

REGION = "us-east-1"
_PREPARATIONS = 6  # requests of `AwsServer._prepare`: moto answers them without a check of signatures


class Keys(NamedTuple):
    """The credentials that sign requests."""

    key: str
    secret: str
    token: str | None = None


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors"))


class AwsServer(ChildServer):
    """Serve within a ``with`` block. ``user`` may only assume the role ``role``, which has all rights for S3."""

    name = "moto"

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.role = ""
        self.user = Keys("", "")

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
        """Return new credentials of the role."""
        found = self.client("sts", self.user).assume_role(RoleArn=self.role, RoleSessionName="tests")["Credentials"]
        return Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])

    def _start(self) -> None:
        self._new_folder()
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._run(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            {"INITIAL_NO_AUTH_ACTION_COUNT": str(_PREPARATIONS)},
        )
        self._await(lambda: _listens(port))
        self._prepare()

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


def _policy(action: str) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]})


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True

"""Our signatures are botocore's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]  # botocore ships no types
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # as above
from botocore.credentials import Credentials as Theirs  # type: ignore[import-untyped]  # as above

from refshard_fs.targets.sigv4 import Credentials, Signer, quote_key


@pytest.mark.parametrize("token", [None, "a+token/="])
@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("key", ["x", "a/b c+d%é&=?.bin", "a//b", "~-_.!*'()"])
def test_a_signature_is_botocores(key: str, pays: bool, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import botocore.auth

    now = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: now, raising=False)
    path = "/" + quote_key(key)
    url = f"https://bkt.s3.eu-west-1.amazonaws.com{path}"
    request = AWSRequest("GET", url, headers={"x-amz-request-payer": "requester"} if pays else {})
    S3SigV4Auth(Theirs("AK", "SK", token), "s3", "eu-west-1").add_auth(request)
    stamp = request.context["timestamp"]
    when = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    signer = Signer("eu-west-1")
    host = "bkt.s3.eu-west-1.amazonaws.com"
    for _ in range(2):
        ours = signer.headers(host, path, Credentials("AK", "SK", token), when, requester_pays=pays)
        for name in ("Authorization", "X-Amz-Date", "X-Amz-Content-SHA256"):
            theirs = request.headers[name]
            found = {k.lower(): v for k, v in ours.items()}[name.lower()]
            if name == "X-Amz-Content-SHA256" and theirs == "UNSIGNED-PAYLOAD":
                pytest.skip("this botocore leaves bodies of GET unsigned over TLS")
            assert found == theirs


def test_credentials_tell_nothing_of_themselves() -> None:
    assert "secret" not in f"{Credentials('key', 'secret', 'secret token')!r} {Credentials('k', 'secret', None)}"

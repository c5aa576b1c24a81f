"""TLS under the HTTP client: verified, bounded, and "not sent" until the first byte inside."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from messaging.providers.http.client import HttpClient, NoReply, Reply
from tests.messaging.providers import stage as staged
from tests.messaging.providers.stage import Response, Stage, open_stage

PATIENT, SHORT = 20.0, 0.3


@dataclass(frozen=True)
class Identity:
    """A self-signed certificate for `localhost`: the server's, and what a client may be told to trust."""

    server: ssl.SSLContext
    trusted: ssl.SSLContext


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain: Path = tmp_path_factory.mktemp("tls") / "chain.pem"
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    chain.write_bytes(key.private_bytes(pem, pkcs8, plain) + certificate.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return Identity(server, ssl.create_default_context(cafile=str(chain)))


@pytest.fixture
def stage(identity: Identity) -> Iterator[Stage]:
    with open_stage(identity.server) as stage:
        stage.default = staged.reply(Response(200, b"{}"))
        yield stage


def ask(url: str, tls: ssl.SSLContext | None, *, times: int = 1, timeout: float = PATIENT) -> Reply | NoReply:
    with contextlib.closing(HttpClient(url, [("POST", "/x")], tls=tls)) as client:
        for _ in range(times):
            reply = client.request("POST", "/x", headers={}, body=b"hello" * 10_000, timeout=timeout)
    return reply


def test_a_trusted_server_is_asked_and_its_connection_kept(stage: Stage, identity: Identity) -> None:
    reply = ask(stage.url, identity.trusted, times=3)
    assert isinstance(reply, Reply)
    assert reply.json() == {}
    assert [seen.connection for seen in stage.requests] == [1, 1, 1]
    assert stage.requests[0].body == b"hello" * 10_000


def test_an_unknown_issuer_is_not_sent_to(stage: Stage) -> None:
    reply = ask(stage.url, None)
    assert reply == NoReply(wrote=False, code="tls_failed", detail="SSLCertVerificationError")
    assert stage.bytes_in == 0


def test_another_host_name_is_not_sent_to(stage: Stage, identity: Identity) -> None:
    reply = ask(f"https://127.0.0.1:{stage.port}", identity.trusted)
    assert reply == NoReply(wrote=False, code="tls_failed", detail="SSLCertVerificationError")
    assert stage.bytes_in == 0


def test_a_server_that_speaks_no_tls_is_not_sent_to(identity: Identity) -> None:
    with open_stage() as plain:
        reply = ask(f"https://localhost:{plain.port}", identity.trusted)
        assert isinstance(reply, NoReply)
        assert (reply.wrote, reply.code) == (False, "tls_failed")
        assert plain.requests == []


def test_a_handshake_that_hangs_is_not_sent(identity: Identity) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        reply = ask(f"https://localhost:{mute.getsockname()[1]}", identity.trusted, timeout=SHORT)
        assert isinstance(reply, NoReply)
        assert (reply.wrote, reply.code) == (False, "tls_timeout")


def test_the_deadline_holds_inside_tls(stage: Stage, identity: Identity) -> None:
    stage.default = staged.trickled_headers(Response(200, b"{}"))
    reply = ask(stage.url, identity.trusted, timeout=SHORT)
    assert isinstance(reply, NoReply)
    assert (reply.wrote, reply.code) == (True, "answer_timeout")


def test_a_connection_dropped_inside_tls_is_unknown(stage: Stage, identity: Identity) -> None:
    stage.default = staged.drop
    reply = ask(stage.url, identity.trusted)
    assert isinstance(reply, NoReply)
    assert (reply.wrote, reply.code) == (True, "answer_failed")
    assert len(stage.requests) == 1

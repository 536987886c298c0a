"""TLS against a server of our own: who is trusted, who is not, and that each failure is one clear line."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from rocketcrew.client.access import Access, TlsOptions
from rocketcrew.client.remoting_client import Remoting
from rocketcrew.client.tls import client_context, compares_names, server_context, server_name
from rocketcrew.remoting.command import Command
from rocketcrew.remoting.errors import UnreachableError, UsageError
from rocketcrew.remoting.frame import FrameReader, encode

YESTERDAY = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
BODY = bytes(range(256)) * 4096  # a megabyte: many TLS records, several reads


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """An authority with a server's and a client's certificate, and another authority that nobody knows."""
    folder = tmp_path_factory.mktemp("pki")
    ours, other = trustme.CA(), trustme.CA()
    made = {"ca": ours.cert_pem, "other_ca": other.cert_pem}
    for name, authority, identity in [
        ("server", ours, "broker.example"), ("client", ours, "client.example"), ("stranger", other, "client.example"),
        ("expired", ours, "broker.example"),
    ]:  # fmt: skip
        issued = authority.issue_cert(identity, not_after=YESTERDAY if name == "expired" else None)
        made[f"{name}_key"] = issued.private_key_pem
        made[name] = issued.cert_chain_pems[0]
    paths = {}
    for name, pem in made.items():
        paths[name] = str(folder / f"{name}.pem")
        pem.write_to_path(paths[name])
    return paths


@contextlib.asynccontextmanager
async def tls_server(pki, wants_client=False, name="server"):
    """Answers every request with its own body."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki[name], pki[f"{name}_key"])
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki["ca"])

    async def serve(reader, writer):
        frames = FrameReader()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                frames.feed(data)
                while (command := frames.next()) is not None:
                    writer.write(encode(command.response(0, body=bytes(command.body))))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(address, body=b"x", *, sink=None, **options):
    remoting = Remoting(access=Access(tls=TlsOptions(**options)))
    try:
        return await remoting.request(address, Command(34, {}, body), timeout_ms=5000, body_sink=sink)
    finally:
        await remoting.close()


async def test_a_trusted_server_and_large_bodies_both_ways(pki):
    room = bytearray(len(BODY))
    async with tls_server(pki) as address:
        answer = await ask(address, BODY, trust_cert_path=pki["ca"])
        assert bytes(answer.body) == BODY
        await ask(address, BODY, sink=lambda command, size: memoryview(room), trust_cert_path=pki["ca"])
        assert bytes(room) == BODY


async def test_the_host_name_counts_only_when_asked_for(pki):
    async with tls_server(pki) as address:
        named = {"trust_cert_path": pki["ca"], "check_hostname": True}
        assert (await ask(address, **named, server_name="broker.example")).code == 0
        with pytest.raises(UnreachableError, match=r"not trusted: .*(mismatch|not valid for).*tls_server_name"):
            await ask(address, **named)


async def test_who_is_not_trusted_and_who_trusts_everybody(pki):
    async with tls_server(pki) as address:
        for options in ({}, {"trust_cert_path": pki["other_ca"]}):
            with pytest.raises(
                UnreachableError, match=r"its certificate is not trusted: .*tls_trust_cert_path"
            ) as caught:
                await ask(address, **options)
            assert "\n" not in str(caught.value)
            assert "_ssl.c" not in str(caught.value)
        assert (await ask(address, auth_server=False)).code == 0


async def test_an_expired_certificate_is_called_so(pki):
    async with tls_server(pki, name="expired") as address:
        with pytest.raises(UnreachableError, match=r"its certificate is not trusted: certificate has expired$"):
            await ask(address, trust_cert_path=pki["ca"])


async def test_a_server_that_wants_a_certificate_gets_ours(pki):
    async with tls_server(pki, wants_client=True) as address:
        trusted = {"trust_cert_path": pki["ca"]}
        assert (await ask(address, **trusted, cert_path=pki["client"], key_path=pki["client_key"])).code == 0
        with pytest.raises(UnreachableError, match=r"wants? a client certificate"):
            await ask(address, **trusted)
        with pytest.raises(UnreachableError, match=r"client certificate"):
            await ask(address, **trusted, cert_path=pki["stranger"], key_path=pki["stranger_key"])


async def test_a_handshake_that_the_peer_ends_has_the_hint_as_its_cause():
    """asyncio's error has no text then, and the hint stood in brackets after nothing."""

    async def end(reader, writer):
        writer.write_eof()
        await reader.read()  # what is not read would reset the connection, which has a text
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    async with server:
        with pytest.raises(UnreachableError, match="cannot connect: during the TLS handshake: is TLS on there"):
            await ask(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", auth_server=False)


async def test_one_side_without_tls_is_told(pki, make_peer):
    async with tls_server(pki) as address:
        remoting = Remoting()
        with pytest.raises(
            UnreachableError, match=r"if it wants TLS, set security.tls_enable; or nothing is behind it"
        ):
            await remoting.request(address, Command(34), timeout_ms=5000)
        await remoting.close()
    async with make_peer() as plain:
        asked = asyncio.create_task(ask(plain.address, auth_server=False))
        (await plain.accept()).raw(b"plain text, no record of TLS")
        with pytest.raises(UnreachableError, match=r"does not answer in TLS|ended the handshake"):
            await asked


def test_files_that_cannot_be_used_are_named(pki, tmp_path):
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for options, says in [
        ({"trust_cert_path": "/no/such.pem"}, "tls_trust_cert_path /no/such.pem: cannot be read: No such file"),
        ({"trust_cert_path": str(empty)}, "tls_trust_cert_path .*empty.pem: is no usable PEM file"),
        ({"cert_path": "/no/such.pem"}, "tls_cert_path /no/such.pem: cannot be read: No such file"),
        ({"cert_path": pki["client"]}, "tls_cert_path .*: is no usable PEM file"),
        ({"cert_path": pki["client"], "key_path": pki["server_key"]}, "the key does not belong to the certificate"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=says):
            client_context(TlsOptions(**options))


@pytest.mark.parametrize("name", ["trust_cert_path", "cert_path", "key_path"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(pki, tmp_path, name):
    """To read a FIFO waited in OpenSSL for somebody to write there, and no signal ended that."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    says = f"cannot be read: {fifo} is no regular file"
    with pytest.raises(UsageError, match=says):
        client_context(TlsOptions(**{"cert_path": pki["client"], "key_path": pki["client_key"], name: str(fifo)}))
    if name != "trust_cert_path":
        files = {"cert_path": pki["server"], "key_path": pki["server_key"], name: str(fifo)}
        with pytest.raises(UsageError, match=f"broker.tls_cert_path .*{says}"):
            server_context(**files)


def test_a_locked_key_needs_its_password(pki, tmp_path):
    key = serialization.load_pem_private_key(Path(pki["client_key"]).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"open sesame")))
    options = {"cert_path": pki["client"], "key_path": str(locked)}
    client_context(TlsOptions(**options, key_password="open sesame"))
    for wrong in ("", "wrong"):
        with pytest.raises(UsageError, match=r"cannot be decrypted: is security.tls_key_password right") as caught:
            client_context(TlsOptions(**options, key_password=wrong))
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "host", "name"),
    [
        ({"trust_cert_path": "ca.pem"}, "10.0.0.1", None),
        ({}, "10.0.0.1", "10.0.0.1"),  # any public certificate would do, whoever owns it
        ({}, "broker.example", "broker.example"),
        ({"check_hostname": True}, "10.0.0.1", "10.0.0.1"),
        ({"server_name": "other"}, "10.0.0.1", "other"),
        ({"check_hostname": True, "auth_server": False}, "10.0.0.1", None),
    ],
)
def test_the_name_that_is_asked_for(options, host, name):
    assert server_name(TlsOptions(**options), host) == name


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        ({}, True),
        ({"trust_cert_path": "ca.pem"}, False),
        ({"trust_cert_path": "ca.pem", "check_hostname": True}, True),
        ({"auth_server": False}, False),
    ],
)
def test_names_are_compared_where_everybody_is_trusted(options, compared):
    assert compares_names(TlsOptions(**options)) is compared

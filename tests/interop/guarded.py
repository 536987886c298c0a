"""Genuine servers that let nobody in without a certificate and a signature: TLS on both sides, ACL of both eras.

The administrator is RocketMQ's own super user; `crew` is an ordinary one, with the permissions that a consumer and a
producer need and no other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from servers import Kind, Servers, run_servers

from rocketcrew.client.access import Access, Credentials, TlsOptions
from rocketcrew.client.opening import open_cluster
from rocketcrew.remoting.command import Command

ADMIN = Credentials("administrator", "admin-secret-1")
CREW = Credentials("crewmember", "crew-secret-1")
GROUPS = ("guarded-group", "guarded-order-group", "TOOLS_CONSUMER")
"""What `CREW` may read for, and for no other. The last one is what Spark's source reads as."""
AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006

PLAIN_ACL = f"""
globalWhiteRemoteAddresses:
accounts:
- accessKey: {ADMIN.access_key}
  secretKey: {ADMIN.secret_key}
  whiteRemoteAddress:
  admin: true
- accessKey: {CREW.access_key}
  secretKey: {CREW.secret_key}
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: DENY
  groupPerms:
""" + "".join(f"  - {group}=SUB\n" for group in GROUPS)

_USER = json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key})
_INNER = json.dumps({"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key})
_AUTH = "org.apache.rocketmq.auth"
BROKER_SETTINGS = {
    "4.9.7": "aclEnable=true\n",
    "5.5.0": f"""authenticationEnabled=true
authenticationProvider={_AUTH}.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider={_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={_USER}
innerClientAuthenticationCredentials={_INNER}
authorizationEnabled=true
authorizationProvider={_AUTH}.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider={_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider
""",
}


@dataclass(frozen=True)
class Papers:
    """PEM files: an authority, a client's certificate, and what strangers have."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def options(self, ca: str = "ca", client: str = "client") -> TlsOptions:
        return TlsOptions(True, self.path(ca), self.path(client), self.path(f"{client}-key"))


def issue(folder: Path) -> Papers:
    """Make all certificates; the keys as Java reads them (PKCS 8)."""
    papers = Papers(folder)
    ours, other = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(papers.path("ca"))
    other.cert_pem.write_to_path(papers.path("other-ca"))
    for name, authority in (("server", ours), ("client", ours), ("stranger", other)):
        issued = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.RSA)
        issued.cert_chain_pems[0].write_to_path(papers.path(name))
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        Path(papers.path(f"{name}-key")).write_bytes(key.private_bytes(*form))
    return papers


def tls_properties(papers: Papers) -> str:
    """tls.properties of a server that wants certificates of everybody, and of the broker as the name server's client."""
    return "".join(
        f"{name}={value}\n"
        for name, value in {
            "tls.test.mode.enable": "false",
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.keyPath": papers.path("server-key"),
            "tls.server.certPath": papers.path("server"),
            "tls.server.trustCertPath": papers.path("ca"),
            "tls.client.authServer": "true",
            "tls.client.keyPath": papers.path("client-key"),
            "tls.client.certPath": papers.path("client"),
            "tls.client.trustCertPath": papers.path("ca"),
        }.items()
    )


@contextmanager
def run_guarded(kind: Kind, folder: Path) -> Iterator[tuple[Servers, Papers]]:
    """Both servers, and the user `CREW` with its permissions. `servers.access` is the administrator's."""
    papers = issue(folder)
    (folder / "tls.properties").write_text(tls_properties(papers))
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    options = ("-Dtls.server.mode=enforcing", "-Dtls.enable=true", f"-Dtls.config.file={folder / 'tls.properties'}")
    access = Access(credentials=ADMIN, tls=papers.options())
    settings = BROKER_SETTINGS[kind.version]
    with run_servers(kind, folder, java_options=options, settings=settings, access=access) as servers:
        if kind.version.startswith("5"):
            asyncio.run(create_crew(servers))
        yield servers, papers


async def create_crew(servers: Servers) -> None:
    """5.x keeps users and permissions in the broker; an administrator makes them."""
    user = {"username": CREW.access_key, "password": CREW.secret_key, "userType": "Normal", "userStatus": "enable"}
    entries = [
        {"resource": "Topic:*", "actions": ["Pub", "Sub", "Get"], "decision": "Allow", "sourceIps": ["127.0.0.1"]},
        *(
            {"resource": f"Group:{group}", "actions": ["Sub", "Get"], "decision": "Allow", "sourceIps": ["127.0.0.1"]}
            for group in GROUPS
        ),
    ]
    subject = f"User:{CREW.access_key}"
    acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
    async with open_cluster(servers.target) as cluster:
        for code, fields, body in (
            (AUTH_CREATE_USER, {"username": CREW.access_key}, user),
            (AUTH_CREATE_ACL, {"subject": subject}, acl),
        ):
            command = Command(code, dict(fields), json.dumps(body).encode())
            answer = await cluster.remoting.request(servers.address, command, timeout_ms=10_000)
            assert answer.code == 0, answer.remark


def as_crew(servers: Servers, papers: Papers, **changes: object) -> Servers:
    """The same servers as an ordinary user reaches them; `changes` are fields of its access."""
    access = Access(servers.name_server, credentials=CREW, tls=papers.options())
    return replace(servers, access=replace(access, **changes))  # type: ignore[arg-type]  # names and types are checked at run time

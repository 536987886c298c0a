"""How a cluster is reached, in one frozen value: addresses, identity, credentials, TLS, namespaces, timeouts.

Producers, tools and the supervisor all take an `Access`; a list of name servers stands for one with defaults. So whatever is
needed to be let in (a signature, a certificate, a namespace) is told in one place and holds for all of them. Secrets
are never part of a `repr`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..remoting.arguments import FLAG, TEXT, TEXTS, check_fields, number, shown
from ..remoting.errors import UsageError
from ..remoting.namespaces import namespace_of_endpoint, unwrap, wrap
from .address import split_name_servers

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 3_000
POLL_INTERVAL_MS = 30_000
NAME_SERVERS: Final = TEXT | TEXTS
_TLS_RULES: Final = {
    "auth_server": FLAG,
    "trust_cert_path": TEXT,
    "cert_path": TEXT,
    "key_path": TEXT,
    "check_hostname": FLAG,
    "server_name": TEXT,
}
_ACCESS_RULES: Final = {
    "name_servers": NAME_SERVERS,
    "namesrv_domain": TEXT,
    "namesrv_domain_subgroup": TEXT,
    "client_ip": TEXT,
    "instance_name": TEXT,
    "unit_name": TEXT,
    "unit_mode": FLAG,
    "namespace": TEXT,
    "namespace_v2": TEXT,
    "vip_channel_enabled": FLAG,
    "request_timeout_ms": number(),
    "connect_timeout_ms": number(),
    "poll_interval_ms": number(),
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks (acl/common/SessionCredentials.java). The token is for temporary keys, and mostly empty."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"Credentials({name}=...): give a str")  # without the value: it is a secret
        if not self.access_key or not self.secret_key:
            raise UsageError("credentials need both an access key and a secret key")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS to name servers and brokers; the names are those of remoting/netty/TlsSystemConfig.java.

    `auth_server` off trusts whoever answers. With it the server's certificate must come from `trust_cert_path` (PEM; empty:
    the system's authorities), and with `check_hostname`, which Java does not know, be made out to `server_name` or the
    host of the address. `server_name` is also what is asked for by SNI; empty: the host if it is a name.
    """

    auth_server: bool = True
    trust_cert_path: str = ""
    cert_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = False
    server_name: str = ""

    def __post_init__(self) -> None:
        """Raises UsageError for a field of a wrong type."""
        check_fields(self, _TLS_RULES)
        if not isinstance(self.key_password, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a user's mistake
            raise UsageError("TlsOptions(key_password=...): give a str")


@dataclass(frozen=True, slots=True)
class Access:
    """See the module's text. `client_ip` and `instance_name` empty: this machine's address, `pid#nanos`."""

    name_servers: str | tuple[str, ...] = ()
    namesrv_domain: str = ""
    """Host, or host:port, of an HTTP server that names the name servers; asked only when none are given."""
    namesrv_domain_subgroup: str = "nsaddr"
    client_ip: str = ""
    instance_name: str = ""
    unit_name: str = ""
    unit_mode: bool = False
    namespace: str = ""
    namespace_v2: str = ""
    vip_channel_enabled: bool = False
    credentials: Credentials | None = None
    tls: TlsOptions | None = None
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    poll_interval_ms: int = POLL_INTERVAL_MS

    def __post_init__(self) -> None:
        """Raises UsageError for a field of a wrong type."""
        check_fields(self, _ACCESS_RULES)
        for name, kind in (("credentials", Credentials), ("tls", TlsOptions)):
            if not isinstance(getattr(self, name), kind | None):
                raise UsageError(f"Access({name}=...): give {kind.__name__}(...), or None")

    def heartbeat_timeout_ms(self, interval_ms: int) -> int:
        """How long a heartbeat waits for its answer. A round waits for the slowest broker, and those that answer forget whom
        they hear nothing from."""
        return min(self.request_timeout_ms, max(interval_ms, REQUEST_TIMEOUT_MS))

    def wrap(self, name: str) -> str:
        """A topic's or group's name as brokers know it."""
        return wrap(self.namespace, name)

    def unwrap(self, name: str) -> str:
        """A topic's or group's name as the user wrote it."""
        return unwrap(self.namespace, name)


NameServerList = str | Iterable[str]


def access_to(target: NameServerList | Access) -> Access:
    """`target` itself, or the access with all defaults to these name servers. Raises UsageError for what is neither."""
    if isinstance(target, Access):
        return target
    name_servers = NAME_SERVERS.taken(target)
    if not NAME_SERVERS.fits(name_servers):
        raise UsageError(
            f"name servers given as {shown(target)}: give 'host:port', several as 'host:port;host:port', or an Access"
        )
    return Access(name_servers, namespace=namespace_of_endpoint(split_name_servers(name_servers)))

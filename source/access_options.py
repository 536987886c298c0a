"""From options to how the cluster is reached; as `[cluster]` and `[security]` of the settings are. Reads the key file.

The key file is read on the driver. Certificates are read where a connection is made: they must be on every executor too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..client.access import Access, Credentials, TlsOptions, parse_key_file
from ..conf.formats import address, domain
from ..remoting.errors import UsageError
from ..remoting.namespaces import namespace_of_endpoint
from .options import parse_options, refuse

KEY_FILE_BYTES_MAX = 64 * 1024


def access_of(given: Mapping[str, str], where: str) -> Access:
    """The access that the options describe. Raises UsageError naming the option."""
    found = parse_options(given, where)
    servers = _servers(found)
    namespace = found["namespace"]
    if not namespace and len(servers) == 1:
        namespace = namespace_of_endpoint(servers[0])
    return Access(
        name_servers=servers,
        namesrv_domain=found["namesrvDomain"] or "",
        unit_name=found["unitName"],
        namespace=namespace,
        namespace_v2=found["namespaceV2"],
        vip_channel_enabled=found["vipChannelEnabled"],
        credentials=_credentials(found),
        tls=_tls(found),
        request_timeout_ms=found["requestTimeoutMs"],
        connect_timeout_ms=found["connectTimeoutMs"],
    )


def _servers(found: Mapping[str, Any]) -> tuple[str, ...]:
    told, asked = found["nameServer"], found["namesrvDomain"]
    if told is None and asked is None:
        raise UsageError(
            "rocketmq: option nameServer is missing: give host:port of the name servers, with ; between them"
        )
    if told is None:
        try:
            domain(asked)
        except ValueError as error:
            raise refuse("namesrvDomain", asked, str(error)) from None
        return ()
    servers = tuple(part for part in (part.strip() for part in told.replace(",", ";").split(";")) if part)
    try:
        for server in servers:
            address(server)
    except ValueError as error:
        raise refuse("nameServer", told, str(error)) from None
    if not servers:
        raise refuse("nameServer", told, "names no server: give host:port")
    return servers


def _credentials(found: Mapping[str, Any]) -> Credentials | None:
    access_key, secret_key, file = found["accessKey"], found["secretKey"], found["keyFile"]
    if bool(access_key) != bool(secret_key):
        missing = "secretKey" if access_key else "accessKey"
        raise UsageError(f"rocketmq: options accessKey and secretKey belong together: {missing} is missing")
    if access_key:
        return Credentials(access_key, secret_key, found["securityToken"])
    if not file:
        return None
    try:
        with Path(file).open(encoding="utf-8") as opened:
            return Credentials(**parse_key_file(opened.read(KEY_FILE_BYTES_MAX), f"of option keyFile {file}"))
    except OSError as error:
        raise refuse("keyFile", file, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise refuse("keyFile", file, "is not UTF-8") from None


def _tls(found: Mapping[str, Any]) -> TlsOptions | None:
    given = [name for name in ("tlsTrustCertPath", "tlsCertPath", "tlsKeyPath", "tlsKeyPassword") if found[name]]
    if not found["tlsEnable"]:
        if given:
            raise UsageError(f"rocketmq: option {given[0]} is given, but tlsEnable is not: set it to true")
        return None
    return TlsOptions(
        auth_server=found["tlsAuthServer"],
        trust_cert_path=found["tlsTrustCertPath"],
        cert_path=found["tlsCertPath"],
        key_path=found["tlsKeyPath"],
        key_password=found["tlsKeyPassword"],
        check_hostname=found["tlsCheckHostname"],
        server_name=found["tlsServerName"],
    )

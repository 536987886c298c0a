"""From options to how the cluster is reached; as `[cluster]` and `[security]` of the settings are. Reads the key file.

The key file is read on the driver. Certificates are read where a connection is made: they must be on every executor too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..client.access import Access, Credentials, TlsOptions
from ..client.address import split_name_servers
from ..client.key_files import read_key_file
from ..conf.formats import address, domain
from ..remoting.errors import UsageError
from ..remoting.namespaces import namespace_of_endpoint
from .options import parse_options, refuse


def access_of(given: Mapping[str, str], where: str) -> Access:
    """The access that the options describe. Raises UsageError naming the option."""
    found = parse_options(given, where)
    servers = _servers(found)
    return Access(
        name_servers=servers,
        namesrv_domain=found["namesrvDomain"] or "",
        unit_name=found["unitName"],
        namespace=found["namespace"] or namespace_of_endpoint(servers),
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
    try:
        servers = tuple(dict.fromkeys(map(address, split_name_servers(told))))  # as the setting cluster.name_servers
    except UsageError as error:
        raise UsageError(f"rocketmq: option nameServer: {error}") from None
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
    return read_key_file(file, f"rocketmq: option keyFile {file}") if file else None


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

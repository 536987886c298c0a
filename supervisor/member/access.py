"""From settings to how the cluster is reached: the one way for the member, for producers and for every tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ...client.access import Access, Credentials, TlsOptions
from ...client.key_files import read_key_file, warn_if_open
from ...conf.formats import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX, topic_of
from ...conf.settings import SecuritySettings, Settings, value_of
from ...conf.sources import holds_secret
from ...remoting.errors import UsageError
from ...remoting.namespaces import namespace_of_endpoint, wrap


def access_of(settings: Settings) -> Access:
    """The access that `[cluster]` and `[security]` describe. Raises UsageError for a key file that cannot be used."""
    c = settings.cluster
    return Access(
        name_servers=c.name_servers,
        namesrv_domain=c.namesrv_domain,
        namesrv_domain_subgroup=c.namesrv_domain_subgroup,
        client_ip=c.client_ip,
        instance_name=c.instance_name,
        unit_name=c.unit_name,
        unit_mode=c.unit_mode,
        namespace=namespace_of(settings),
        namespace_v2=c.namespace_v2,
        vip_channel_enabled=c.vip_channel_enabled,
        credentials=_credentials(settings.security),
        tls=_tls(settings.security) if settings.security.tls_enable else None,
        request_timeout_ms=c.request_timeout_ms,
        connect_timeout_ms=c.connect_timeout_ms,
        poll_interval_ms=c.poll_name_server_interval_ms,
    )


def check_files(settings: Settings) -> None:
    """Read what a start would read: key file and certificates. Raises UsageError naming the setting."""
    tls = access_of(settings).tls
    if tls is not None:
        from ...client.tls import client_context  # commands that only read settings need no ssl

        client_context(tls)


def secret_files(settings: Settings) -> list[tuple[str, str]]:
    """Files that this member's secrets stand in: the setting, and the file that it names or stands in."""
    s = settings.security
    found = [("security.key_file", s.key_file)] if s.key_file and not s.access_key else []
    key = s.tls_key_path or s.tls_cert_path
    if s.tls_enable and key and not s.tls_key_password:
        found.append(("security.tls_key_path", key))
    for name, origin in settings.origin.items():
        if origin.startswith("file ") and holds_secret(name, value_of(settings, name)):
            return [*found, (name, origin.removeprefix("file "))]  # there is one file of settings
    return found


def warn_of_open_files(settings: Settings) -> None:
    """Log each of them that everybody on this machine can read."""
    for setting, file in secret_files(settings):
        warn_if_open(setting, file)


def namespace_of(settings: Settings) -> str:
    """The namespace that is set, or that the only name server's name says (ClientConfig.java getNamespace)."""
    cluster = settings.cluster
    return cluster.namespace or namespace_of_endpoint(cluster.name_servers)


def in_namespace(settings: Settings) -> Settings:
    """The settings with group and topics as brokers know them; the same where there is no namespace.

    Everything inside works with these names; only messages and results of tools show the plain ones. Raises UsageError for
    names that are too long with the namespace.
    """
    namespace, consumer = namespace_of(settings), settings.consumer
    if not namespace:
        return settings
    group = wrap(namespace, consumer.group)
    topics = tuple(f"{wrap(namespace, topic_of(text))}{text[len(topic_of(text)) :]}" for text in consumer.topics)
    queues = tuple(f"{wrap(namespace, topic)}@{rest}" for topic, _, rest in _parted(consumer.allocate_queues))
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"consumer.group {group}: more than {GROUP_LENGTH_MAX} characters with the namespace")
    for text in topics:
        if len(topic_of(text)) > TOPIC_LENGTH_MAX:
            raise UsageError(
                f"consumer.topics: {topic_of(text)} has more than {TOPIC_LENGTH_MAX} characters with the namespace"
            )
    cluster = replace(settings.cluster, namespace=namespace)
    return replace(
        settings, cluster=cluster, consumer=replace(consumer, group=group, topics=topics, allocate_queues=queues)
    )


def _parted(queues: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """`topic@broker:queueId` at its first @."""
    return (text.partition("@") for text in queues)


def _credentials(s: SecuritySettings) -> Credentials | None:
    if s.access_key:
        return Credentials(s.access_key, s.secret_key, s.security_token)
    return read_key_file(s.key_file, f"security.key_file {s.key_file}") if s.key_file else None


def _absolute(path: str) -> str:
    """Workers read the file when a handler sends for the first time, which may have changed their current folder before."""
    return str(Path(path).absolute()) if path else ""


def _tls(s: SecuritySettings) -> TlsOptions:
    return TlsOptions(
        auth_server=s.tls_auth_server,
        trust_cert_path=_absolute(s.tls_trust_cert_path),
        cert_path=_absolute(s.tls_cert_path),
        key_path=_absolute(s.tls_key_path),
        key_password=s.tls_key_password,
        check_hostname=s.tls_check_hostname,
        server_name=s.tls_server_name,
    )

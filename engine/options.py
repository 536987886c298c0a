"""From rocketcrew's settings to the options of the source, and to what tasks are told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..client.access import Access
from ..conf.settings import Settings
from ..conf.units import HOUR_MS
from ..remoting.names import RETRY_PREFIX
from ..remoting.subscription import parse_subscription, split_subscription
from ..workers.boot import WorkerBounds, worker_bounds


def topics_of(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The topics of the configuration, without a namespace, each with its wanted tags; none = all messages."""
    wishes = (split_subscription(text) for text in settings.consumer.topics)
    return {topic: tuple(sorted(parse_subscription(wish.expression).tags)) for topic, wish in wishes}


def retry_topic(settings: Settings) -> str:
    """The group's retry topic, without a namespace."""
    return f"{RETRY_PREFIX}{settings.consumer.group}"


def access_options(access: Access) -> dict[str, str]:
    """The connection, as the source's options have it. Values may be secret."""
    told: dict[str, object] = {
        "nameServer": ";".join(access.name_servers), "namesrvDomain": access.namesrv_domain,
        "namespace": access.namespace, "namespaceV2": access.namespace_v2, "unitName": access.unit_name,
        "vipChannelEnabled": access.vip_channel_enabled, "requestTimeoutMs": access.request_timeout_ms,
        "connectTimeoutMs": access.connect_timeout_ms,
    }  # fmt: skip
    if access.credentials is not None:
        one = access.credentials
        told |= {"accessKey": one.access_key, "secretKey": one.secret_key, "securityToken": one.security_token}
    if access.tls is not None:
        tls = access.tls
        told |= {
            "tlsEnable": True, "tlsAuthServer": tls.auth_server, "tlsTrustCertPath": tls.trust_cert_path,
            "tlsCertPath": tls.cert_path, "tlsKeyPath": tls.key_path, "tlsKeyPassword": tls.key_password,
            "tlsCheckHostname": tls.check_hostname, "tlsServerName": tls.server_name,
        }  # fmt: skip
    return {name: _text(value) for name, value in told.items() if value != ""}


def pull_options(settings: Settings) -> dict[str, str]:
    """How ranges are pulled; what nobody has set stays as the source has it."""
    consumer = settings.consumer
    told = {"pullBatchSize": "consumer.pull_batch_size", "pullTimeoutMs": "consumer.pull_timeout_ms"}
    values = {"pullBatchSize": consumer.pull_batch_size, "pullTimeoutMs": consumer.pull_timeout_ms}
    return {option: str(values[option]) for option, name in told.items() if settings.origin[name] != "default"}


def stream_options(settings: Settings, access: Access, starting: str, partitions: int) -> dict[str, str]:
    """The options of the stream. `starting` is read where there is no checkpoint yet, and for queues that it does not have.

    What retention has deleted is passed over with a line in the log, as a consumer of the group would.
    """
    return {
        **access_options(access),
        **pull_options(settings),
        "subscribe": ",".join([*topics_of(settings), retry_topic(settings)]),
        "group": settings.consumer.group,
        "startingOffsets": starting,
        "newQueues": "group",
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": str(settings.engine.max_offsets_per_trigger),
        "minPartitions": str(partitions),
    }


def window_options(settings: Settings, access: Access, from_ms: int, to_ms: int, partitions: int) -> dict[str, str]:
    """The options of a batch read of what was stored from `from_ms` until before `to_ms`."""
    return {
        **access_options(access),
        **pull_options(settings),
        "subscribe": ",".join(topics_of(settings)),
        "startingTimestamp": str(from_ms),
        "endingTimestamp": str(to_ms),
        "startingOffsetsByTimestampStrategy": "latest",
        "minPartitions": str(partitions),
    }


def tags_by_topic(settings: Settings, access: Access) -> Mapping[str, tuple[str, ...]]:
    """Wanted tags by topic as brokers know it, for the topics that have any."""
    return {access.wrap(topic): tags for topic, tags in topics_of(settings).items() if tags}


def task_bounds(settings: Settings) -> WorkerBounds:
    """The bounds of handler calls and segments, as for a worker."""
    # A task has no idle time: its segment ends with it.
    return replace(worker_bounds(settings), flush_interval_us=1_000_000, seal_idle_ms=HOUR_MS)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

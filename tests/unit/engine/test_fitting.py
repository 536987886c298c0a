"""Which settings hold with the engine on Spark: each is known, and those without a meaning are refused by name."""

from __future__ import annotations

import pytest

from rocketcrew.conf.settings import load
from rocketcrew.conf.sources import KNOWN
from rocketcrew.engine.fitting import MEANINGLESS, check_handler, check_settings
from rocketcrew.remoting.errors import UsageError
from rocketcrew.workers.api import handler

HOLD = {
    "cluster.name_servers", "cluster.namesrv_domain", "cluster.unit_name", "cluster.namespace", "cluster.namespace_v2",
    "cluster.vip_channel_enabled", "cluster.request_timeout_ms", "cluster.connect_timeout_ms",
    "consumer.group", "consumer.topics", "consumer.consume_from_where", "consumer.consume_timestamp",
    "consumer.consume_message_batch_max_size", "consumer.consume_timeout_min", "consumer.max_reconsume_times",
    "consumer.delay_level_when_next_consume", "consumer.dead_letter_errors", "consumer.pull_batch_size",
    "consumer.pull_timeout_ms",
    "workers.soft_time_limit_ms", "workers.hard_time_limit_ms", "workers.max_worker_deaths",
    "results.enabled", "results.schema", "results.seal_rows", "results.seal_bytes_mib",
    "spark.target", "spark.format", "spark.function", "spark.delta_jars", "spark.iceberg_jars", "spark.master",
    "spark.driver_memory",
    "spark.max_rows", "spark.max_bytes_mib", "spark.target_file_mib", "spark.jvm_timeout_ms", "spark.on_recreated",
    "spark.on_gap", "spark.keep_outcomes_days", "spark.vacuum", "spark.merge_files",
    "spark.conf", "spark.options", "spark.java_home", "spark.partition_by",
    "supervisor.data_dir", "supervisor.stop_deadline_ms", "supervisor.drain_deadline_ms", "supervisor.send_back_retry_ms",
    "trace.spans", "log.level", "log.format", "log.file",
}  # fmt: skip
WHOLE_SECTIONS = ("security", "engine", "broker")


def test_every_setting_holds_or_is_refused_with_a_reason() -> None:
    left = {name for name in KNOWN if name.partition(".")[0] not in WHOLE_SECTIONS}
    assert left - set(MEANINGLESS) == HOLD
    assert set(MEANINGLESS) <= set(KNOWN)
    assert all(MEANINGLESS.values())


def test_what_somebody_has_set_and_means_nothing_is_refused() -> None:
    check_settings(load({"consumer.topics": "t:a || b", "consumer.order": "concurrent"}, {}, None))
    check_settings(load({"supervisor.stop_deadline_ms": 500, "supervisor.drain_deadline_ms": 500}, {}, None))
    with pytest.raises(UsageError, match="`load` and `query` take sc://"):
        check_settings(load({"spark.master": "sc://h:15002"}, {}, None))
    with pytest.raises(UsageError, match="declare the columns"):
        check_settings(load({"results.schema": "infer"}, {}, None))
    wrong = {"workers.count": 4, "consumer.order": "queue", "consumer.topics": "t:SQL92:a > 1"}
    with pytest.raises(UsageError) as caught:
        check_settings(load(wrong, {"ROCKETCREW_METRICS_PORT": "9000"}, None))
    text = str(caught.value)
    for part in (
        "workers.count = 4 (from flag --set): Spark starts",
        "consumer.order",
        "metrics.port = 9000 (from env",
        "SQL92",
    ):
        assert part in text


def test_order_is_refused_in_the_decorator_too() -> None:
    check_handler(handler(schema="n int")(len))
    with pytest.raises(UsageError, match='has order="queue"'):
        check_handler(handler(order="queue")(len))

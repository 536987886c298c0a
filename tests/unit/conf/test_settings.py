from __future__ import annotations

import dataclasses
import pickle
import typing
from pathlib import Path

import pytest

from rocketcrew.conf.settings import Settings, load, require, value_of
from rocketcrew.conf.sources import KNOWN, ConfigError, defaults_text, environment_name, show_setting
from rocketcrew.remoting.errors import UsageError


def problems(
    flags: dict[str, object] | None = None, env: dict[str, str] | None = None, file: Path | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, env or {}, file)
    return str(caught.value)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rocketcrew.toml"
    file.write_text(text)
    return file


def test_defaults_alone_are_legal_and_say_so() -> None:
    settings = load({}, {}, None)
    assert settings.consumer.pull_batch_size == 32
    assert settings.cluster.name_servers == ()
    assert set(settings.origin.values()) == {"default"}


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = written(tmp_path, "[consumer]\npull_batch_size = 5\npull_interval_ms = 5\nconsume_timeout_min = 5\n")
    env = {"ROCKETCREW_CONSUMER_PULL_BATCH_SIZE": "6", "ROCKETCREW_CONSUMER_PULL_INTERVAL_MS": "6"}
    settings = load({"consumer.pull_batch_size": 7}, env, file, flag_names={"consumer.pull_batch_size": "--batch"})
    consumer = settings.consumer
    assert (consumer.pull_batch_size, consumer.pull_interval_ms, consumer.consume_timeout_min) == (7, 6, 5)
    assert settings.origin["consumer.pull_batch_size"] == "flag --batch"
    assert settings.origin["consumer.pull_interval_ms"] == "environment ROCKETCREW_CONSUMER_PULL_INTERVAL_MS"
    assert settings.origin["consumer.consume_timeout_min"] == f"file {file}"
    assert settings.origin["consumer.group"] == "default"


def test_namesrv_addr_stands_between_our_own_variable_and_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[cluster]\nname_servers = ["f:1"]\n')
    assert load({}, {"NAMESRV_ADDR": "a:9876;b:9876"}, file).cluster.name_servers == ("a:9876", "b:9876")
    both = {"NAMESRV_ADDR": "a:9876", "ROCKETCREW_CLUSTER_NAME_SERVERS": "c:9876"}
    assert load({}, both, file).cluster.name_servers == ("c:9876",)
    assert load({}, {"NAMESRV_ADDR": " "}, file).cluster.name_servers == ("f:1",)


def test_a_problem_names_setting_value_origin_and_legal_range() -> None:
    text = problems(env={"ROCKETCREW_CONSUMER_PULL_BATCH_SIZE": "5000"})
    assert "consumer.pull_batch_size" in text
    assert '"5000"' in text
    assert "environment ROCKETCREW_CONSUMER_PULL_BATCH_SIZE" in text
    assert "1 to 1024 messages" in text


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, '[workers]\ncount = "four"\n[log]\nlevel = "loud"\nfont = "Arial"\n')
    with pytest.raises(ConfigError) as caught:
        load({"metrics.port": 70_000}, {"ROCKETCREW_RESULTS_ENABLED": "perhaps"}, file)
    told = {problem.setting for problem in caught.value.problems}
    assert told == {"workers.count", "log.level", "log.font", "metrics.port", "results.enabled"}
    assert str(caught.value).startswith("5 problems")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("consumer.pull_batch_sise", "consumer.pull_batch_size"),
        ("consumer.pullBatchSize", "consumer.pull_batch_size"),
        ("consumer.consumeThreadMax", "workers.count"),
        ("consumer.seal_rows", "results.seal_rows"),
        ("pull_threshold_for_queue", "consumer.pull_threshold_for_queue"),
        ("work.count", "workers.count"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known(given: str, nearest: str) -> None:
    assert f"did you mean {nearest}?" in problems({given: "1"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("parqet", "parquet"), ("Parquet", "parquet"), ("pyarow", "pyarrow"), ("delta-lake", "deltalake")],
)
def test_what_is_nearly_a_format_of_ours_is_none_of_sparks(given: str, meant: str) -> None:
    assert f'spark.format = "{given}" (from flag --set) is no format: did you mean {meant}?' in problems(
        {"spark.format": given}
    )


@pytest.mark.parametrize("format_", ["orc", "io.delta", "org.apache.spark.sql.parquet", "hudi", "deltaSharing"])
def test_any_other_format_is_sparks(format_: str) -> None:
    assert load({"spark.format": format_}, {}, None).spark.format == format_


def test_unknown_names_in_file_and_environment(tmp_path: Path) -> None:
    file = written(tmp_path, 'group = "g"\n[consumr]\ngroup = "g"\n[zzz]\na = 1\n[consumer]\ngruop = "g"\n')
    text = problems(file=file, env={"ROCKETCREW_CONSUMER_TOPIC": "t", "ROCKETCREW_CONFIG": "x", "OTHER": "y"})
    assert "did you mean consumer.group?" in text
    assert "[consumr]" in text
    assert "did you mean [consumer]?" in text
    assert "sections are [cluster]" in text
    assert "did you mean ROCKETCREW_CONSUMER_TOPICS?" in text
    assert "ROCKETCREW_CONFIG" not in text


LINKS = {
    "ROCKETCREW_METRICS_PORT": "tcp://10.96.0.7:9464",
    "ROCKETCREW_METRICS_PORT_9464_TCP": "tcp://10.96.0.7:9464",
    "ROCKETCREW_METRICS_PORT_9464_TCP_ADDR": "10.96.0.7",
    "ROCKETCREW_METRICS_PORT_9464_TCP_PORT": "9464",
    "ROCKETCREW_METRICS_PORT_9464_TCP_PROTO": "tcp",
    "ROCKETCREW_METRICS_SERVICE_HOST": "10.96.0.7",
    "ROCKETCREW_METRICS_SERVICE_PORT": "9464",
    "ROCKETCREW_METRICS_SERVICE_PORT_METRICS": "9464",
    "ROCKETCREW_PORT": "tcp://10.96.0.8:80",
}


def test_what_kubernetes_sets_for_a_service_of_our_name_is_named_as_that_once() -> None:
    with pytest.raises(ConfigError) as refused:
        load({}, LINKS, None)
    (problem,) = refused.value.problems
    assert str(problem).startswith("environment ROCKETCREW_METRICS_PORT and 8 more came with a Service: Kubernetes ")
    assert "`enableServiceLinks: false`" in str(problem)


@pytest.mark.parametrize("name", LINKS)
def test_each_of_them_is_known_alone(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"environment {name} came with a Service"):
        load({}, {name: LINKS[name]}, None)


def test_no_setting_is_taken_for_one_of_them() -> None:
    values = {environment_name(name): "x" for name in KNOWN}
    with pytest.raises(ConfigError) as refused:
        load({}, values, None)
    assert "Kubernetes" not in str(refused.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rocketcrew.toml"
    file.write_text('[consumer]\ngroup = "billing"\n', encoding="utf-8-sig")
    assert load({}, {}, file).consumer.group == "billing"


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert "is not a table" in problems(file=written(tmp_path, "consumer = 3\n"))


@pytest.mark.parametrize(
    ("flags", "first", "second"),
    [
        (
            {"consumer.consume_concurrently_max_span": 10, "consumer.consume_message_batch_max_size": 11},
            "consumer.consume_concurrently_max_span = 10",
            "consumer.consume_message_batch_max_size = 11",
        ),
        (
            {"consumer.consume_message_batch_max_size": 257},
            "workers.chunk_messages_max = 256",
            "consumer.consume_message_batch_max_size = 257",
        ),
        ({"consumer.pull_timeout_ms": 19_999}, "consumer.pull_timeout_ms", "consumer.suspend_timeout_ms"),
        ({"supervisor.stop_deadline_ms": 9_999}, "supervisor.stop_deadline_ms", "supervisor.drain_deadline_ms"),
        ({"spark.max_rows": 49_999}, "spark.max_rows", "results.seal_rows"),
        ({"spark.max_bytes_mib": 15}, "spark.max_bytes_mib", "results.seal_bytes_mib"),
        ({"results.commit_after": "loaded", "spark.load": False}, "results.commit_after", "spark.load"),
        ({"results.commit_after": "loaded", "results.enabled": False}, "results.commit_after", "results.enabled"),
        ({"broker.port": 9876}, "broker.port = 9876", "broker.name_server_port = 9876"),
    ],
)
def test_relations_name_both_settings_with_value_and_origin(flags: dict[str, object], first: str, second: str) -> None:
    text = problems(flags)
    assert first in text
    assert second in text
    assert "flag --set" in text


def test_relations_hold_at_their_edges() -> None:
    load({"consumer.consume_concurrently_max_span": 1}, {}, None)
    load({"consumer.consume_concurrently_max_span": 32, "consumer.consume_message_batch_max_size": 32}, {}, None)
    load({"consumer.pull_timeout_ms": 20_000}, {}, None)
    load({"broker.port": 0, "broker.name_server_port": 0}, {}, None)
    load({"results.commit_after": "loaded"}, {}, None)


def test_a_refused_value_is_not_judged_again_by_its_relations() -> None:
    assert problems({"workers.chunk_messages_max": 5000}).startswith("one problem")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[consumer\n", "is not TOML"),
        (b'[consumer]\ngroup = "\xff"\n', "is not UTF-8"),
        (b"#" * ((1 << 20) + 1), "is larger than"),
        (b"a = " + b"[" * 5000, "is not TOML"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=says):
        load({}, {}, file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load({}, {}, tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load({}, {}, tmp_path)


def test_the_reference_is_itself_a_legal_file(tmp_path: Path) -> None:
    file = written(tmp_path, defaults_text())
    assert load({}, {}, file) == load({}, {}, None)


def test_settings_are_frozen_and_travel_to_children() -> None:
    settings = load({"consumer.topics": "a:x || y,b"}, {}, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.consumer.group = "other"  # type: ignore[misc]
    back = pickle.loads(pickle.dumps(settings))
    assert back == settings
    assert back.consumer.topics == ("a:x || y", "b")


def test_errors_travel_too() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"metrics.port": -1}, {}, None)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_annotations_agree_with_the_values() -> None:
    settings = load({}, {}, None)
    kinds = {"int": int, "str": str, "bool": bool}
    for section in dataclasses.fields(Settings):
        if section.name == "origin":
            continue
        part: object = getattr(settings, section.name)
        for name, annotation in typing.get_type_hints(part.__class__).items():
            value = getattr(part, name)
            if annotation in kinds.values():
                assert type(value) is annotation, f"{section.name}.{name}"
            else:
                assert isinstance(value, (tuple, dict)), f"{section.name}.{name}"


def test_require_tells_every_way_to_set_what_is_missing() -> None:
    settings = load({"consumer.topics": ["t"]}, {}, None)
    with pytest.raises(UsageError) as caught:
        require(
            settings, ["consumer.group", "consumer.topics", "cluster.name_servers"], flag_names={"consumer.group": "-g"}
        )
    text = str(caught.value)
    assert "consumer.group: give -g, or ROCKETCREW_CONSUMER_GROUP in the environment, or group under [consumer]" in text
    assert "--set cluster.name_servers=..., or NAMESRV_ADDR" in text
    assert "consumer.topics" not in text
    require(settings, ["consumer.topics"])


SECRETS = {"security.secret_key": "S3CRET", "security.security_token": "S3CRET", "security.tls_key_password": "S3CRET"}


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    settings = load({"security.access_key": "me", **SECRETS}, {}, None)
    assert "S3CRET" not in repr(settings)
    assert all(value_of(settings, name) == "S3CRET" for name in SECRETS)
    assert all(show_setting(name, "S3CRET") == '"********"' for name in SECRETS)
    assert show_setting("sentry.dsn", "https://S3CRET@host/1") == '"********"'
    assert "S3CRET" not in repr(load({"sentry.dsn": "https://S3CRET@host/1"}, {}, None))
    assert "S3CRET" not in problems({"sentry.dsn": "https://S3CRET@host/x"})
    spark = {
        "spark.conf": "spark.hadoop.fs.s3a.secret.key=S3CRET,spark.executor.cores=7",
        "spark.options": '{"password": "S3CRET", "uri": "jdbc:x://me:S3CRET@h"}', "spark.master": "sc://h:1/;token=S3CRET",
    }  # fmt: skip
    shown = repr(load(spark, {}, None))
    assert "S3CRET" not in shown
    assert "'spark.executor.cores': '7'" in shown
    assert show_setting("security.secret_key", "") == '""'
    assert show_setting("spark.master", "sc://h:1/;token=S3CRET") == '"sc://h:1/;********"'
    wrong = problems(dict.fromkeys(SECRETS, "S3CRET\0"), {"ROCKETCREW_SECURITY_ACCESS_KEY": ""})
    assert "security.secret_key" in wrong
    assert "S3CRET" not in wrong


@pytest.mark.parametrize(
    "file",
    [
        '[security]\nsecrt_key = "S3CRET"',
        '[security]\npw = "S3CRET"',
        '[metrics]\ntokn = "S3CRET"',
        '[sentry]\nDSN = "https://S3CRET@host/1"',
        '[cluster]\nsecretKey = "S3CRET"',
        '[cluster]\nstore_password = "S3CRET"',
        'secretKey = "S3CRET"',
        'security = "S3CRET"',
        '[spark]\nconf = {"spark.hadoop.fs.s3a.secret.key" = "S3CRET", x = [1]}',
        '[spark.conf]\nspark.hadoop.fs.s3a.secret.key = "S3CRET"\nx = [1]',
        '[spark.conf]\nspark.hadoop.fs.s3a.access.key = "S3CRET"\nx = [1]',
        '[spark.conf]\nx = ["password=S3CRET"]',
        '[spark.config]\nspark.hadoop.fs.s3a.access.key = "S3CRET"',
        '[spark]\nmater = "sc://h:1/;token=S3CRET"',
        'spark = "sc://h;token=S3CRET"',
        '[cluster]\nname_servers = "http://u:S3CRET@h"',
    ],
)
def test_what_may_be_a_secret_is_not_shown_where_its_name_is_wrong(tmp_path: Path, file: str) -> None:
    (tmp_path / "c.toml").write_text(file)
    with pytest.raises(ConfigError, match="one problem") as caught:
        load({}, {}, tmp_path / "c.toml")
    assert "S3CRET" not in str(caught.value)


def test_what_may_be_a_secret_is_not_shown_where_a_flag_or_variable_is_wrong() -> None:
    said = problems({"security.secrt_key": "S3CRET"}, {"ROCKETCREW_SECURITY_SECRT_KEY": "S3CRET"})
    assert "security.secrt_key (from flag --set) is no setting; did you mean security.secret_key?" in said
    assert "ROCKETCREW_SECURITY_SECRET_KEY?" in said
    assert "S3CRET" not in said
    assert "consumer.grup = " in problems({"consumer.grup": "billing"})
    assert "S3CRET" not in problems({"spark.conf": "spark.hadoop.fs.s3a.secret.key=S3CRET,x"})
    assert "S3CRET" not in problems({"spark.conf": "spark.hadoop.fs.s3a.secret.key=ab,S3CRET"})
    assert "S3CRET" not in problems({"spark.cnf": '{"spark.hadoop.fs.s3a.secret.key":"S3CRET"}'})
    assert "S3CRET" not in problems({"spark.mater": "sc://h:1/;token=S3CRET"})
    assert 'spark.mater = "spark://h:7077"' in problems({"spark.mater": "spark://h:7077"})


def test_keys_of_a_store_in_sparks_settings_are_not_shown() -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "S3CRET", "spark.hadoop.fs.s3a.endpoint": "http://minio:9000"}
    assert show_setting("spark.conf", conf) == show_setting(
        "spark.conf", {**conf, "spark.hadoop.fs.s3a.secret.key": "x"}
    )
    assert "http://minio:9000" in show_setting("spark.conf", conf)
    assert "S3CRET" not in show_setting("spark.conf", conf)


def test_keys_of_the_acl_go_together() -> None:
    assert "security.access_key must be given together with security.secret_key" in problems(
        {"security.access_key": "me"}
    )
    only_secret = problems({"security.secret_key": "S3CRET"})
    assert "a signature needs both" in only_secret
    assert "S3CRET" not in only_secret
    assert "needs security.access_key" in problems({"security.security_token": "t"})
    assert "needs security.tls_cert_path" in problems({"security.tls_key_path": "k.pem"})
    assert "needs broker.tls_cert_path" in problems({"broker.tls_key_path": "k.pem"})
    assert "security.tls_auth_server" in problems(
        {"security.tls_check_hostname": True, "security.tls_auth_server": False}
    )


def test_an_address_server_stands_for_name_servers() -> None:
    require(load({"cluster.namesrv_domain": "ns.example"}, {}, None), ["cluster.name_servers"])
    for wrong in ("http://ns.example", "ns.example:99999", "a b"):
        assert "legal: host or host:port" in problems({"cluster.namesrv_domain": wrong})

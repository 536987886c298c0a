"""The files of deploy/ say what is so: names of metrics and settings, deadlines, commands; and who runs in the image."""

from __future__ import annotations

import configparser
import json
import re
import tempfile
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rocketcrew.cli.commands.init import DOCKERFILE
from rocketcrew.cli.commands.stop import WAIT_S
from rocketcrew.cli.main import rocketcrew as cli
from rocketcrew.conf.exit_codes import EXIT_HANDLER, EXIT_USAGE
from rocketcrew.conf.settings import Settings, load
from rocketcrew.conf.sources import CONFIG_FILE_VARIABLE, KNOWN, environment_name
from rocketcrew.engine.fitting import check_settings
from rocketcrew.engine.table import check_target
from rocketcrew.spark.needs import check_installed
from rocketcrew.spark.status import LoaderStatus
from rocketcrew.supervisor.core.decisions import Core
from rocketcrew.supervisor.core.slab import SLAB_BYTES_MIN, Slab
from rocketcrew.supervisor.core.states import ServiceState
from rocketcrew.supervisor.lifecycle import END_S
from rocketcrew.supervisor.loader_child import DRAIN_TIMEOUT_S, STOP_TIMEOUT_S
from rocketcrew.supervisor.metrics import PictureCollector
from rocketcrew.supervisor.service import HOOKS_STOP_S, WORKER_STOP_MS
from rocketcrew.supervisor.status import picture
from rocketcrew.supervisor.wiring import core_config, own_client_id

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
DRAIN_S = load({}, {}, None).supervisor.stop_deadline_ms / 1000
LOADER_S = DRAIN_TIMEOUT_S + STOP_TIMEOUT_S
STOP_S = DRAIN_S + WORKER_STOP_MS / 1000 + LOADER_S + HOOKS_STOP_S + END_S
"""From TERM until queues are drained, workers have left, the loader's batch has ended and hooks have heard of it, at most."""
UNIT = DEPLOY / "systemd/rocketcrew@.service"
ENVIRONMENT = {environment_name(name) for name in KNOWN} | {CONFIG_FILE_VARIABLE}
OTHER_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def hold_against_schema(made: dict[str, Any], version: str = "") -> None:
    """Of the newest version, unless one is named. Raises ValueError."""
    import kubernetes_validate  # takes two seconds, which is too long for processes that only collect these tests

    try:
        kubernetes_validate.validate(made, version or kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(error.message) from error


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def exported() -> set[str]:
    """Names of all series that /metrics can have."""
    settings = load({"consumer.group": "g", "consumer.topics": ["t"], "cluster.name_servers": "host:1"}, {}, None)
    slab = Slab(SLAB_BYTES_MIN)
    core = Core(core_config(settings, "me", ("t",)), slab, memoryview(bytearray(slab.size_bytes)))
    loader = {**asdict(LoaderStatus()), "last": {"seconds": 0.1}}
    backlog = {"segments": 0, "bytes": 0, "oldest_s": 0.0}
    extra = {"staff": {"workers": 1, "counts": {}}, "loader": loader, "backlog": backlog}
    families = PictureCollector(lambda: picture(core, ServiceState.RUNNING, {}, extra)).collect()
    return {family.name + suffix for family in families for suffix in OTHER_SUFFIXES.get(family.type, ("",))}


def named(text: str) -> set[str]:
    return set(re.findall(r"\b(?:rocketcrew|rocketmq)_\w+", text))


def queries() -> list[str]:
    (alerts,) = documents("grafana/alerts.yaml")
    board = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    (keda,) = documents("kubernetes/keda.yaml")
    return [
        *(rule["expr"] for group in alerts["groups"] for rule in group["rules"]),
        *(target["expr"] for panel in board["panels"] for target in panel["targets"]),
        *(variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"),
        *(trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]),
    ]


def test_every_metric_that_is_asked_for_is_exported() -> None:
    known = exported()
    assert {"rocketmq_consumer_lag_messages", "rocketcrew_done_messages_total"} <= known
    assert len(queries()) > 25
    for query in queries():
        assert named(query), query
        assert named(query) <= known, query


def test_every_way_in_which_a_group_gets_nothing_done_has_an_alert() -> None:
    """Each alone keeps the lag small or steady: all goes back, all hangs, nobody is there, messages are passed over."""
    (alerts,) = documents("grafana/alerts.yaml")
    asked = [named(rule["expr"]) for group in alerts["groups"] for rule in group["rules"]]
    failed, done = "rocketcrew_failed_messages_total", "rocketcrew_done_messages_total"
    assert {failed, done} in asked
    in_hand = {"rocketmq_consumer_lag_messages", "rocketmq_consumer_inflight_messages"}  # of what is popped is no lag
    assert in_hand | {failed, done, "rocketcrew_filtered_messages_total"} in asked
    assert {"rocketcrew_undelivered_messages_total"} in asked
    assert any("rocketcrew_ready_workers" in query and " unless " in query for query in queries())


def test_metrics_are_asked_for_by_the_labels_that_they_have() -> None:
    """RocketMQ's names have consumer_group, ours have group."""
    for query in queries():
        for name, label in re.findall(r"\b(rocketcrew|rocketmq)_\w+\{(\w+)", query):
            assert label == ("group" if name == "rocketcrew" else "consumer_group"), query


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana/dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def test_the_steps_of_a_stop_are_told_everywhere_as_they_are() -> None:
    told = {
        "conf/defaults.toml": r"up to (\d+) s to seal .* loader up to (\d+) s .* hooks up to (\d+) s: (\d+) s in all",
        "docs/how-to/deploy.md": r"workers have (\d+) s, the loader has (\d+) s .* hooks have (\d+) s: (\d+) s in all",
    }
    steps = (WORKER_STOP_MS / 1000, LOADER_S, HOOKS_STOP_S + END_S, STOP_S)
    for file, sentence in told.items():
        text = re.sub(r"\n[# ]*", " ", (ROOT / file).read_text())
        (found,) = re.findall(sentence, text)
        assert tuple(map(float, found)) == steps, file


def test_the_grace_period_is_longer_than_a_stop_everywhere() -> None:
    objects = documents("kubernetes/member.yaml")
    (members,) = [each for each in objects if each["kind"] == "StatefulSet"]
    assert members["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_S
    (compose,) = documents("docker/compose.yaml")
    assert float(compose["services"]["member"]["stop_grace_period"].removesuffix("s")) > STOP_S
    assert float(unit()["Service"]["TimeoutStopSec"]) > STOP_S
    assert WAIT_S > STOP_S, "of `rocketcrew stop --wait`"
    (named,) = re.findall(r"--stop-timeout (\d+)", DOCKERFILE)
    assert float(named) > STOP_S
    boot_s = load({}, {}, None).workers.boot_timeout_ms / 1000
    assert float(unit()["Service"]["TimeoutStartSec"]) > boot_s
    probe = members["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > boot_s


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(UNIT)
    return found


def test_the_unit_waits_for_ready_and_does_not_restart_what_cannot_start() -> None:
    service = unit()["Service"]
    assert (service["Type"], service["KillMode"], service["NotifyAccess"]) == ("notify", "mixed", "main")
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == {EXIT_USAGE, EXIT_HANDLER}


def test_what_the_unit_and_the_page_have_a_member_write_it_may_write_under_the_unit() -> None:
    service = unit()["Service"]
    assert service["ProtectSystem"] == "strict"
    writable = {Path("/var/lib", service["StateDirectory"]), Path("/var/log", service["LogsDirectory"])}
    (data_dir,) = re.findall(r"^Environment=ROCKETCREW_SUPERVISOR_DATA_DIR=(.+)", UNIT.read_text(), re.MULTILINE)
    logs = re.findall(r'log\.file = "(/[^"]+)"', (ROOT / "docs/how-to/operate.md").read_text())
    assert logs
    for path in map(Path, (data_dir, *logs)):
        assert writable & {path, *path.parents}, path
    said = (ROOT / "docs/how-to/deploy.md").read_text()
    assert all(f"`{path}`".replace("%i", "billing") in said for path in writable)


def test_settings_of_the_environment_exist() -> None:
    texts = [
        (DEPLOY / name).read_text()
        for name in (
            "docker/Dockerfile",
            "docker/compose.yaml",
            "systemd/rocketcrew@.service",
            "kubernetes/member.yaml",
            "kubernetes/spark.yaml",
        )
    ]
    found = {name for text in texts for name in re.findall(r"\bROCKETCREW_[A-Z_]+", text)}
    assert len(found) >= 6
    assert found <= ENVIRONMENT


def test_no_pod_gets_the_variables_of_services_whose_names_begin_like_ours() -> None:
    (members,) = [each for each in documents("kubernetes/member.yaml") if each["kind"] == "StatefulSet"]
    objects = {each["kind"]: each for each in documents("kubernetes/spark.yaml")}
    executor = yaml.safe_load(objects["ConfigMap"]["data"]["executor.yaml"])
    pods = [members["spec"]["template"]["spec"], objects["StatefulSet"]["spec"]["template"]["spec"], executor["spec"]]
    assert [pod["enableServiceLinks"] for pod in pods] == [False, False, False]


def test_the_configuration_of_the_manifest_can_be_loaded_and_its_ports_agree(tmp_path: Path) -> None:
    objects = {each["kind"]: each for each in documents("kubernetes/member.yaml")}
    text = objects["ConfigMap"]["data"]["rocketcrew.toml"]
    file = tmp_path / "rocketcrew.toml"
    file.write_text(text)
    settings = load({}, {}, file)
    assert settings.supervisor.stop_deadline_ms == tomllib.loads(text)["supervisor"]["stop_deadline_ms"]
    pod = objects["StatefulSet"]["spec"]["template"]
    (member,) = pod["spec"]["containers"]
    port = settings.metrics.port
    assert member["ports"][0]["containerPort"] == objects["Service"]["spec"]["ports"][0]["port"] == port
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    mounts = [mount["mountPath"] for mount in member["volumeMounts"]]
    assert any(settings.supervisor.data_dir.startswith(mount) for mount in mounts)
    (keda,) = documents("kubernetes/keda.yaml")
    scaled = keda["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("StatefulSet", objects["StatefulSet"]["metadata"]["name"])


def member_settings(tmp_path: Path) -> Settings:
    objects = {each["kind"]: each for each in documents("kubernetes/member.yaml")}
    (file := tmp_path / "rocketcrew.toml").write_text(objects["ConfigMap"]["data"]["rocketcrew.toml"])
    return load({}, {}, file)


def test_the_image_can_write_the_format_that_its_users_set(tmp_path: Path) -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert extras == ["duckdb"], "brings none of what formats ask for"
    (compose,) = documents("docker/compose.yaml")
    in_compose = compose["services"]["member"]["environment"]["ROCKETCREW_SPARK_FORMAT"]
    in_example = re.findall(r"ROCKETCREW_SPARK_FORMAT=(\w+)", text)
    for format_ in (member_settings(tmp_path).spark.format, in_compose, *in_example):
        check_installed(format_, installed=lambda package: "")
    assert len(in_example) == 1


def test_a_pod_has_as_many_workers_as_cores_are_requested(tmp_path: Path) -> None:
    (members,) = [each for each in documents("kubernetes/member.yaml") if each["kind"] == "StatefulSet"]
    (member,) = members["spec"]["template"]["spec"]["containers"]
    assert member_settings(tmp_path).workers.count == int(member["resources"]["requests"]["cpu"])


def test_what_is_commented_out_in_the_manifest_can_be_taken(tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes/member.yaml").read_text()
    taken = re.sub(r"^( +)# (- \{name: ROCKETCREW_)", r"\1\2", text, flags=re.MULTILINE)
    taken = re.sub(r"^( +)#   (format|target) = ", r"\1\2_taken = ", taken, flags=re.MULTILINE)
    (members,) = [each for each in yaml.safe_load_all(taken) if each["kind"] == "StatefulSet"]
    hold_against_schema(members)
    (member,) = members["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value", "rocketcrew-billing-0") for each in member["env"]}
    del values[CONFIG_FILE_VARIABLE]
    assert len(values) == 5
    secrets = [
        each["valueFrom"]["secretKeyRef"] for each in member["env"] if "secretKeyRef" in each.get("valueFrom", {})
    ]
    (told,) = re.findall(r"# +kubectl create secret generic (.*)", text)
    assert {each["name"] for each in secrets} == {told.split()[0]}
    assert [f"--from-literal={each['key']}=..." for each in secrets] == told.split()[1:]
    told = re.findall(r'(\w+)_taken = (".*")', taken)
    assert [name for name, _ in told] == ["format", "target"]
    (file := tmp_path / "rocketcrew.toml").write_text(
        '[consumer]\nmessage_model = "BROADCASTING"\n[spark]\n' + "".join(f"{name} = {value}\n" for name, value in told)
    )
    settings = load({}, values, file)
    assert settings.spark.target.startswith("s3://")
    assert settings.security.access_key == settings.security.secret_key == "rocketcrew-billing-0"
    assert own_client_id(settings) == "127.0.0.1@rocketcrew-billing-0"
    mounts = [mount["mountPath"] for mount in member["volumeMounts"]]
    assert any(settings.consumer.local_offset_store_dir.startswith(f"{mount}/") for mount in mounts)


def test_a_pod_may_write_where_a_member_writes_and_nowhere_else(tmp_path: Path) -> None:
    (members,) = [each for each in documents("kubernetes/member.yaml") if each["kind"] == "StatefulSet"]
    pod = members["spec"]["template"]["spec"]
    (member,) = pod["containers"]
    assert member["securityContext"]["readOnlyRootFilesystem"]
    written = [Path(mount["mountPath"]) for mount in member["volumeMounts"] if not mount.get("readOnly")]
    assert Path("/tmp") in written
    settings = member_settings(tmp_path)
    for folder in (settings.supervisor.data_dir, tempfile.gettempdir()):
        assert any(Path(folder).is_relative_to(mount) for mount in written), folder
    assert not settings.log.file
    assert pod["automountServiceAccountToken"] is False


def test_an_image_gets_rocketcrew_from_a_wheel_and_not_by_a_name_that_anybody_may_take() -> None:
    for text in (DOCKERFILE, (DEPLOY / "docker/Dockerfile").read_text()):
        lines = [
            line for line in text.replace("\\\n", " ").splitlines() if line.startswith("RUN") and "pip install" in line
        ]
        assert lines
        for line in lines:
            named = line.split("pip install")[1].split("&&")[0]
            assert re.search(r"/wheels/rocketcrew-|\$\{wheel\}", named), line
            assert not re.search(r"(?<![/\w])rocketcrew\b", named), line


def test_actions_of_a_release_are_named_by_their_commit() -> None:
    used = re.findall(r"uses: (\S+)", (ROOT / ".github/workflows/release.yaml").read_text())
    assert len(used) >= 5
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


def test_members_leave_after_a_while_by_what_kubernetes_knows() -> None:
    """KEDA hands `behavior` on to the HorizontalPodAutoscaler that it makes; its cooldownPeriod is for 0 members alone."""
    (keda,) = documents("kubernetes/keda.yaml")
    spec = keda["spec"]
    assert spec["minReplicaCount"] > 0
    assert "cooldownPeriod" not in spec
    made: dict[str, Any] = {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "made-by-keda"},
        "spec": {
            "scaleTargetRef": spec["scaleTargetRef"], "maxReplicas": spec["maxReplicaCount"],
            "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
        },
    }  # fmt: skip
    hold_against_schema(made)
    assert made["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] <= 3600, "Kubernetes' own bound"


@pytest.mark.parametrize("words", [
    pytest.param(documents("docker/compose.yaml")[0]["services"]["member"]["command"].split(), id="compose"),
    pytest.param(documents("kubernetes/member.yaml")[2]["spec"]["template"]["spec"]["containers"][0]["args"], id="pod"),
    pytest.param(documents("kubernetes/spark.yaml")[6]["spec"]["template"]["spec"]["containers"][0]["args"], id="driver"),
])  # fmt: skip
def test_commands_exist(words: list[str]) -> None:
    context = click.Context(cli, info_name="rocketcrew")
    command = cli.get_command(context, words[0])
    assert command is not None
    command.make_parser(click.Context(command, info_name=words[0])).parse_args(words[1:])


OF_KUBERNETES = [
    pytest.param(each, id=f"{name}-{each['kind']}")
    for name in ("member", "spark")
    for each in documents(f"kubernetes/{name}.yaml")
]


@pytest.mark.parametrize("made", OF_KUBERNETES)
@pytest.mark.parametrize("version", ["1.31", ""], ids=["1.31", "newest"])
def test_objects_hold_against_the_schema_of_kubernetes(made: dict[str, Any], version: str) -> None:
    """A word that it does not know is an error too."""
    hold_against_schema(made, version)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"replica": 2}, "'replica' was unexpected"),
        ({"replicas": "2"}, "'2' is not of type 'integer'"),
        ({"selector": []}, "is not of type 'object'"),
    ],
)
def test_the_schema_finds_what_is_wrong(wrong: dict[str, Any], says: str) -> None:
    (made,) = [each for each in documents("kubernetes/member.yaml") if each["kind"] == "StatefulSet"]
    made["spec"] |= wrong
    with pytest.raises(ValueError, match=says):
        hold_against_schema(made)


def test_driver_and_executors_on_kubernetes_agree(tmp_path: Path) -> None:
    """On ports, names, the volume and its place, and the user who writes there."""
    objects = {each["kind"]: each for each in documents("kubernetes/spark.yaml")}
    told = objects["ConfigMap"]["data"]
    (file := tmp_path / "rocketcrew.toml").write_text(told["rocketcrew.toml"])
    settings = load({}, {}, file)
    check_settings(settings)
    check_target(settings)
    conf, pod = settings.spark.conf, objects["StatefulSet"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    ports = [int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])]
    assert [port["containerPort"] for port in driver["ports"]] == ports
    assert [port["port"] for port in objects["Service"]["spec"]["ports"]] == ports
    service, namespace = objects["Service"]["metadata"]["name"], conf["spark.kubernetes.namespace"]
    assert conf["spark.driver.host"] == f"{service}.{namespace}.svc"
    assert conf["spark.kubernetes.driver.pod.name"] == f"{objects['StatefulSet']['metadata']['name']}-0"
    (subject,) = objects["RoleBinding"]["subjects"]
    account = objects["ServiceAccount"]["metadata"]["name"]
    assert (subject["name"], subject["namespace"], pod["serviceAccountName"]) == (account, namespace, account)
    assert conf["spark.kubernetes.authenticate.serviceAccountName"] == account
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.state"
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert conf[f"{volume}.options.claimName"] == claim == pod["volumes"][1]["persistentVolumeClaim"]["claimName"]
    assert objects["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert conf[f"{volume}.mount.path"] == driver["volumeMounts"][1]["mountPath"]
    assert settings.supervisor.data_dir.startswith(conf[f"{volume}.mount.path"])
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    assert str(template.parent) == driver["volumeMounts"][0]["mountPath"]
    executor = yaml.safe_load(told[template.name])
    assert executor["spec"]["securityContext"] == pod["securityContext"]
    assert pod["terminationGracePeriodSeconds"] > STOP_S


def dockerfile() -> list[tuple[str, str]]:
    text = (DEPLOY / "docker/Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_runs_the_supervisor_itself_as_a_user_without_rights() -> None:
    lines = dockerfile()
    last_stage = lines[max(place for place, (word, _) in enumerate(lines) if word == "FROM") :]
    said = dict(last_stage)
    assert int(said["USER"]) > 0  # a number: Kubernetes' runAsNonRoot cannot judge a name
    assert json.loads(said["ENTRYPOINT"]) == ["rocketcrew"]  # no shell between: it is PID 1, and TERM reaches it
    assert said["STOPSIGNAL"] == "SIGTERM"
    words = [word for word, _ in last_stage]
    assert "RUN" not in words[words.index("USER") :]
    (state,) = re.findall(r"ROCKETCREW_SUPERVISOR_DATA_DIR=(\S+)", said["ENV"])
    assert state.startswith(said["VOLUME"])
    assert said["EXPOSE"] in said["ENV"]

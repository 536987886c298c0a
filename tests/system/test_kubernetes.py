"""The pod of an executor, as Spark makes it of deploy/kubernetes/spark.yaml, against the schema of Kubernetes. No cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rocketcrew.conf.settings import load
from rocketcrew.spark.java import find_java
from rocketcrew.spark.session import SessionSettings, spark_conf

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "spark.yaml"
END_S = 60.0


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A JVM with Spark's classes, and no session."""
    from pyspark.java_gateway import launch_gateway

    monkeypatch.setenv("JAVA_HOME", str(find_java("", os.environ).home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    made: Any = launch_gateway()
    yield made
    made.shutdown()
    made.proc.stdin.close()
    try:
        made.proc.wait(END_S)
    except subprocess.TimeoutExpired:
        made.proc.kill()
        made.proc.wait()


def scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def executor_pod(jvm: Any, conf: dict[str, str]) -> dict[str, Any]:
    """What Spark would give to Kubernetes (KubernetesExecutorBuilder)."""
    spark, kubernetes = jvm.org.apache.spark, jvm.io.fabric8.kubernetes.client
    told = spark.SparkConf(False)
    for name, value in conf.items():
        told.set(name, value)
    nothing = jvm.scala.Option.empty()
    secret = scala_object(spark.internal.config, "package").AUTH_SECRET_FILE()
    manager = spark.SecurityManager(told, nothing, secret)
    manager.initializeAuth()
    made = spark.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
        spark.deploy.k8s.KubernetesExecutorConf(told, "an-app", "1", nothing, 0),
        manager,
        kubernetes.KubernetesClientBuilder().build(),
        scala_object(spark.resource, "ResourceProfile").getOrCreateDefaultProfile(told),
    )
    as_json = kubernetes.utils.Serialization.asJson
    pod: dict[str, Any] = json.loads(as_json(made.pod().pod()))
    pod["spec"]["containers"] = [json.loads(as_json(made.pod().container()))]
    return pod


def test_the_pod_of_an_executor(gateway: Any, tmp_path: Path) -> None:
    told = next(each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "ConfigMap")["data"]
    for name, text in told.items():
        (tmp_path / name).write_text(text)
    settings = load({}, {}, tmp_path / "rocketcrew.toml")
    of_session = SessionSettings(
        tmp_path, master=settings.spark.master, driver_memory=settings.spark.driver_memory,
        conf=settings.spark.conf, env=os.environ,
    )  # fmt: skip
    conf = spark_conf(of_session) | {"spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml")}
    pod = executor_pod(gateway.jvm, conf)
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == settings.spark.conf["spark.kubernetes.container.image"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    shared = mounts["/var/lib/rocketcrew"]["persistentVolumeClaim"]
    assert (shared["claimName"], shared["readOnly"]) == ("rocketcrew-billing-spark", False)
    assert set(mounts) == {"/var/lib/rocketcrew", "/tmp/spark", "/opt/spark/conf"}
    assert pod["spec"]["securityContext"] == yaml.safe_load(told["executor.yaml"])["spec"]["securityContext"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    driver = environment["SPARK_DRIVER_URL"]
    assert environment["_SPARK_AUTH_SECRET"], "executors are known to the driver by it"
    host, port = (settings.spark.conf[f"spark.driver.{name}"] for name in ("host", "port"))
    assert driver.endswith(f"@{host}:{port}")

"""RocketMQ's own Java client, with AclClientRPCHook and TLS, against our embedded broker that asks for both."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import trustme
from ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "system"))

from harness import WAIT_S
from needs import need_jars
from servers import CLIENT_OPTIONS, VERSIONS, Java, class_path, write_logging

from rocketcrew.cli.children import Child, listens

ACCOUNTS = """
[[accounts]]
accessKey = "administrator"
secretKey = "admin-secret"
admin = true

[[accounts]]
accessKey = "crewmember"
secretKey = "crew-secret"
defaultTopicPerm = "SUB"
defaultGroupPerm = "SUB"
topicPerms = ["guarded=PUB|SUB"]
"""
TOPIC = "guarded"
TOO_LATE = re.compile("Remoting(Connect|Timeout|TooMuchRequest)Exception")
"""The tools give each answer three seconds, the first connection of their JVM with its handshake among them."""


@pytest.mark.parametrize("version", [kind.version for kind in VERSIONS])
def test_a_java_client_with_key_and_tls_is_let_in(version: str, tmp_path: Path) -> None:
    need_jars(version)
    classes = class_path(version)
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    issued = trustme.CA().issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    write_logging(tmp_path)  # makes conf/
    name_server_port, port = free_ports(2)
    broker = Child("broker", [
        "broker", "--name-server-port", str(name_server_port), "--port", str(port), "--dir", str(tmp_path / "data"),
        "--acl-file", str(tmp_path / "acl.toml"), "--tls-cert", str(tmp_path / "server.pem"),
    ], log=tmp_path / "broker.log")  # fmt: skip
    runs = 0

    def admin(key: str, secret: str, *words: str) -> str:
        """What a command prints as an account; again while an answer came too late, which says nothing of who is let in."""
        deadline = time.monotonic() + WAIT_S
        said = run(key, secret, *words)
        while TOO_LATE.search(said) and time.monotonic() < deadline:
            said = run(key, secret, *words)
        return said

    def run(key: str, secret: str, *words: str, tls: bool = True) -> str:
        """One `mqadmin` command as an account; what it prints, all in one."""
        nonlocal runs
        runs += 1
        (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: {secret}\n")
        options = (*CLIENT_OPTIONS, f"-Dtls.enable={str(tls).lower()}")
        line = ("org.apache.rocketmq.tools.command.MQAdminStartup", *words, "-n", f"127.0.0.1:{name_server_port}")
        tool = Java(f"mqadmin-{runs}", tmp_path, classes, line, options)
        try:
            return "\n".join(tool.finish())
        finally:
            tool.stop()

    try:
        broker.wait_for(lambda: listens(name_server_port) and listens(port), WAIT_S, "start")
        create = ("updateTopic", "-b", f"127.0.0.1:{port}", "-t", TOPIC, "-r", "1", "-w", "1")
        refused = admin("crewmember", "crew-secret", *create)
        assert "Need admin permission for request code=17, but accessKey=crewmember is not" in refused
        assert "create topic" in admin("administrator", "admin-secret", *create)
        send = ("sendMessage", "-t", TOPIC, "-p", "a message of Java")
        assert "Check signature failed for accessKey=crewmember" in admin("crewmember", "wrong-secret", *send)
        assert "SEND_OK" in admin("crewmember", "crew-secret", *send)
        assert "a message of Java" in admin("crewmember", "crew-secret", "printMsg", "-t", TOPIC, "-d", "true")
        assert "SEND_OK" not in run("crewmember", "crew-secret", *send, tls=False)
    finally:
        broker.stop(WAIT_S)

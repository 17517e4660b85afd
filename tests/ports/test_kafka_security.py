"""TLS and SASL from the settings; the password comes from the environment or a file and goes nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.settings import load_settings
from admitone.transport import open_transport
from admitone.transport.kafka.kafka_log import KafkaLog
from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.servers.kafka_records import new_name, publish, values_of
from tests.servers.service import wait_until

VARIABLE = "ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD"
TOO_SHORT = "ADMITONE_TRANSPORT__KAFKA__LOOK_TIMEOUT"
LISTENERS = {
    "SSL": "",
    "SASL_SSL": f'sasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "{USER}"\n',
    "SASL_PLAINTEXT": f'sasl_mechanism = "PLAIN"\nsasl_username = "{USER}"\n',
}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything that is logged."""
    with caplog.at_level(logging.DEBUG):
        yield caplog


def configure(home: Path, broker: KafkaBroker, listener: str, *lines: str) -> None:
    """Write the settings for a listener, certificates included."""
    kept = broker.certificates
    tls = f'ssl_ca = "{kept}/authority.pem"\n' if listener.endswith("SSL") else ""
    if listener == "SSL":
        tls += f'ssl_certificate = "{kept}/client.pem"\nssl_key = "{kept}/client.key"\n'
    (home / "admitone.toml").write_text(
        '[transport]\nkind = "kafka"\n[transport.kafka]\n'
        f'bootstrap = "{broker.bootstrap_of(listener)}"\nsecurity_protocol = "{listener}"\n'
        f'delivery_timeout = "5s"\n{tls}{LISTENERS[listener]}' + "".join(f"{x}\n" for x in lines)
    )


def forget(home: Path, *settings: str) -> None:
    """Remove settings from the file."""
    file = home / "admitone.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith(settings)))


def opened(home: Path) -> KafkaLog:
    log = open_transport(load_settings(home))
    assert isinstance(log, KafkaLog)
    return log


@pytest.mark.parametrize(
    ("listener", "secret"),
    [
        ("SSL", "file"),
        ("SASL_SSL", "file"),
        ("SASL_SSL", "environment"),
        ("SASL_PLAINTEXT", "environment"),
    ],
)
def test_publishing_and_reading_work_from_the_settings_alone(
    listener: str,
    secret: str,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: pytest.LogCaptureFixture,
) -> None:
    if secret == "environment":
        monkeypatch.setenv(VARIABLE, PASSWORD)
        configure(tmp_path, kafka_broker, listener)
    else:
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        configure(tmp_path, kafka_broker, listener, 'sasl_password_file = "password"')
    log = opened(tmp_path)
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a", b"b")

    assert values_of(log, topic) == [b"a", b"b"]
    settings = load_settings(tmp_path)
    for shown in (repr(log), repr(settings), settings.model_dump_json(), said.text):
        assert PASSWORD not in shown


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("use", ["create_topic", "topic", "init_producer"])
def test_a_wrong_password_is_a_matter_of_configuration_and_is_not_shown(
    use: str,
    listener: str,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: pytest.LogCaptureFixture,
) -> None:
    wrong = "correct-horse-battery-staple"
    monkeypatch.setenv(VARIABLE, wrong)
    configure(tmp_path, kafka_broker, listener)
    log = opened(tmp_path)
    arguments = ("t", 1) if use == "create_topic" else ("t",)
    with pytest.raises(ConfigurationError, match=r"(?i)authentication failed") as failure:
        getattr(log, use)(*arguments)

    for shown in (
        str(failure.value),
        repr(failure.value),
        repr(failure.value.__cause__),
        said.text,
    ):
        assert wrong not in shown


def test_a_broker_whose_certificate_is_not_trusted_is_not_talked_to(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    configure(tmp_path, kafka_broker, "SASL_SSL")
    forget(tmp_path, "ssl_ca")
    with pytest.raises(ConfigurationError, match="certificate"):
        opened(tmp_path).topic("t")


def test_a_client_without_its_certificate_is_told_so(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    configure(tmp_path, kafka_broker, "SSL")
    forget(tmp_path, "ssl_certificate", "ssl_key")
    with pytest.raises(ServiceUnreachable, match="certificate"):
        opened(tmp_path).topic("t")


def test_a_key_file_that_is_not_there_is_named(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    configure(tmp_path, kafka_broker, "SSL")
    file = tmp_path / "admitone.toml"
    file.write_text(file.read_text().replace("client.key", "nobody.key"))
    with pytest.raises(ConfigurationError, match=r"nobody\.key"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["sasl_password", "ssl_key_password"])
def test_a_password_in_the_settings_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(f'[transport.kafka]\n{name} = "{PASSWORD}"\n')
    with pytest.raises(ConfigurationError, match="environment or from a file") as refusal:
        load_settings(tmp_path)

    assert f"ADMITONE_TRANSPORT__KAFKA__{name.upper()}" in str(refusal.value)
    assert PASSWORD not in str(refusal.value)


def test_settings_that_do_not_fit_together_are_refused_without_showing_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    monkeypatch.setenv(TOO_SHORT, "1s")
    with pytest.raises(ConfigurationError, match="look_timeout") as refusal:
        load_settings(tmp_path)

    for shown in (str(refusal.value), str(refusal.value.__cause__)):
        assert PASSWORD not in shown


_RIGHTS = {
    ResourceType.TOPIC: ("t-", "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE"),
    ResourceType.TRANSACTIONAL_ID: ("admitone:", "WRITE", "DESCRIBE"),
    ResourceType.GROUP: ("admitone", "READ"),
}
"""What docs/guide/kafka.md says that a user needs, by the beginnings of names."""


@pytest.fixture
def guarded_broker() -> Iterator[KafkaBroker]:
    """A broker with ACLs: whoever connects without TLS and SASL may do everything, the user nothing yet."""
    broker = KafkaBroker(
        secure=True,
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    )
    yield broker
    broker.close()


def acl(kind: ResourceType, name: str, operation: str) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.PREFIXED, f"User:{USER}", "*",
        AclOperation[operation], AclPermissionType.ALLOW,
    )  # fmt: skip


def test_the_rights_that_the_guide_names_are_enough_and_the_group_is_needed(
    guarded_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    configure(tmp_path, guarded_broker, "SASL_PLAINTEXT")
    administrator = guarded_broker.administrator()
    wanted = [acl(kind, name, each) for kind, (name, *all_of) in _RIGHTS.items() for each in all_of]
    for made in administrator.create_acls(wanted).values():
        made.result(30)
    log = opened(tmp_path)
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a")
    assert values_of(log, topic) == [b"a"]
    assert log.claim("shop", [topic.name], "ledger-1") == {topic.name: "ledger-1"}

    group, _ = _RIGHTS[ResourceType.GROUP]
    every = AclBindingFilter(
        ResourceType.GROUP, group, ResourcePatternType.PREFIXED, None, None,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    for gone in administrator.delete_acls([every]).values():
        gone.result(30)
    refused = opened(tmp_path)

    def is_refused() -> bool:
        try:
            refused.owners("shop", [topic.name])
        except ConfigurationError as error:
            return "consumer group 'admitone:shop'" in str(error)
        return False

    wait_until(is_refused, "brokers have heard that the right is gone")
    with pytest.raises(ConfigurationError, match="consumer group 'admitone:shop'"):
        refused.claim("shop", [topic.name], "ledger-1")

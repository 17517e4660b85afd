"""Spark's client and ours reach the same brokers from the same settings; no secret is left anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.support.pipeline import event
from tests.support.running import kafka_pipeline, outcome, start_pipeline

SECURITY = {
    "SASL_SSL": """
transport.kafka.security_protocol = "SASL_SSL"
transport.kafka.sasl_username = "{user}"
transport.kafka.ssl_ca = "{certificates}/authority.pem"
""",
    "SSL": """
transport.kafka.security_protocol = "SSL"
transport.kafka.ssl_ca = "{certificates}/authority.pem"
transport.kafka.ssl_certificate = "{certificates}/client.pem"
transport.kafka.ssl_key = "{certificates}/client.key"
""",
}


@pytest.mark.parametrize("listener", SECURITY)
def test_the_whole_pipeline_speaks_tls_and_sasl(
    listener: str, kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD", PASSWORD)
    pipeline = kafka_pipeline(
        tmp_path,
        kafka_broker,
        bootstrap=kafka_broker.bootstrap_of(listener),
        more=SECURITY[listener].format(user=USER, certificates=kafka_broker.certificates),
    )
    pipeline.ingest(*(event(f"e{number}") for number in range(50)), event("e0"))
    ended = outcome(start_pipeline(tmp_path, "boundary", "--until-idle"))

    assert ended.returncode == 0, ended.stderr
    assert pipeline.verdicts("e0") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert pipeline.verdicts("e49") == [("ADMITTED", None)]
    assert pipeline.problems() == []
    assert PASSWORD not in ended.stdout + ended.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file for file in files if PASSWORD.encode() in file.read_bytes()] == []

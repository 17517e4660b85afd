"""What both Kafka clients are told, from one place: librdkafka, which publishes, and Spark's, which reads.

Secrets come from the environment or from files and go nowhere else: not into logs, errors or stored settings.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from admitone.core.errors import ConfigurationError
from admitone.settings import KafkaSettings, Settings

Options = dict[str, str | int]

_LEAST_SILENCE_MS = 1_100
"""Clients want to wait a second longer than brokers are asked to wait for more records."""


def librdkafka_options(settings: Settings) -> Options:
    """Return what every librdkafka client needs to reach the brokers."""
    kafka = settings.transport.kafka
    options: Options = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "client.id": f"admitone-{settings.pipeline.name}",
        "socket.keepalive.enable": "true",
        "reconnect.backoff.max.ms": 2_000,
        "socket.timeout.ms": silence_ms(kafka),
        "socket.connection.setup.timeout.ms": silence_ms(kafka),
        "api.version.request.timeout.ms": silence_ms(kafka),
    }
    if _speaks_sasl(kafka):
        options |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": kafka.sasl_username,
            "sasl.password": _sasl_password(settings),
        }
    if _speaks_tls(kafka):
        options |= _present(
            {
                "ssl.ca.location": _file(settings, kafka.ssl_ca),
                "ssl.certificate.location": _file(settings, kafka.ssl_certificate),
                "ssl.key.location": _file(settings, kafka.ssl_key),
                "ssl.key.password": _key_password(settings),
            }
        )
    return options


def java_options(settings: Settings) -> dict[str, str]:
    """Return the same for Spark's Kafka source, in the words of the Java client."""
    kafka = settings.transport.kafka
    options = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "isolation.level": "read_committed",
        "request.timeout.ms": str(silence_ms(kafka)),
    }
    if _speaks_sasl(kafka):
        login = (
            "org.apache.kafka.common.security.plain.PlainLoginModule"
            if kafka.sasl_mechanism == "PLAIN"
            else "org.apache.kafka.common.security.scram.ScramLoginModule"
        )
        user, password = (
            text.replace("\\", "\\\\").replace('"', '\\"')
            for text in (kafka.sasl_username, _sasl_password(settings))
        )
        options |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.jaas.config": f'{login} required username="{user}" password="{password}";',
        }
    if _speaks_tls(kafka):
        options |= _present(
            {
                "ssl.truststore.type": "PEM" if kafka.ssl_ca else "",
                "ssl.truststore.location": _file(settings, kafka.ssl_ca),
                "ssl.keystore.type": "PEM" if kafka.ssl_certificate else "",
                "ssl.keystore.certificate.chain": _text(settings, kafka.ssl_certificate),
                "ssl.keystore.key": _text(settings, kafka.ssl_key),
                "ssl.key.password": _key_password(settings),
            }
        )
    return options


def silence_ms(kafka: KafkaSettings) -> int:
    """Return how long one broker may be silent: so long that there is time for another one to lead and be asked."""
    return max(_LEAST_SILENCE_MS, kafka.delivery_timeout // 3)


def _speaks_sasl(kafka: KafkaSettings) -> bool:
    return kafka.security_protocol.startswith("SASL")


def _speaks_tls(kafka: KafkaSettings) -> bool:
    return kafka.security_protocol.endswith("SSL")


def _sasl_password(settings: Settings) -> str:
    kafka = settings.transport.kafka
    return _secret(settings, kafka.sasl_password, kafka.sasl_password_file)


def _key_password(settings: Settings) -> str:
    kafka = settings.transport.kafka
    return _secret(settings, kafka.ssl_key_password, kafka.ssl_key_password_file)


def _secret(settings: Settings, given: SecretStr, file: str) -> str:
    return given.get_secret_value() or _text(settings, file).strip()


def _file(settings: Settings, path: str) -> str:
    if not path:
        return ""
    found = settings.resolve(path)
    if not found.is_file():
        raise ConfigurationError(
            f"Expected a PEM file at {found}, there is none.", "mend [transport.kafka]"
        )
    return str(found)


def _text(settings: Settings, path: str) -> str:
    return Path(_file(settings, path)).read_text(encoding="utf-8") if path else ""


def _present(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}

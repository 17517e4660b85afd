"""The log: how to reach it, and which topics there are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from admitone.settings.section import TOPIC_NAME, DurationMs, Section

ProducerId = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class KafkaSettings(Section):
    """How to reach the brokers; both clients, Spark's and the publishing one, are configured from here."""

    bootstrap: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    sasl_password_file: str = ""
    ssl_ca: str = ""
    ssl_certificate: str = ""
    ssl_key: str = ""
    ssl_key_password: SecretStr = SecretStr("")
    ssl_key_password_file: str = ""
    delivery_timeout: DurationMs = 30_000
    transaction_timeout: DurationMs = 60_000
    look_timeout: DurationMs = 90_000
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"

    @model_validator(mode="after")
    def _a_look_outlasts_a_transaction(self) -> KafkaSettings:
        if self.look_timeout <= self.transaction_timeout:
            raise ValueError(
                "look_timeout must be longer than transaction_timeout: an abandoned transaction hides"
                " records until it times out"
            )
        if self.delivery_timeout > self.transaction_timeout:
            raise ValueError("delivery_timeout must not be longer than transaction_timeout")
        return self


class TransportSettings(Section):
    """The log that carries raw and admitted records."""

    kind: Literal["folder", "kafka"] = "folder"
    path: str = "data/log"
    kafka: KafkaSettings = KafkaSettings()
    create_topics: bool = True
    check_interval: DurationMs = 10_000
    raw_topic: str = "raw"
    raw_partitions: int = Field(default=4, ge=1, le=1_000)
    raw_replication: int = Field(default=1, ge=1)
    raw_retention: DurationMs = 604_800_000
    filter_replays: bool = False
    producers: tuple[ProducerId, ...] = ()
    strict_keys: bool = False
    max_per_trigger: int = Field(default=400_000, ge=1)

    @model_validator(mode="after")
    def _replays_are_those_of_announced_producers(self) -> TransportSettings:
        if self.filter_replays and not self.producers:
            raise ValueError(
                "filter_replays needs producers: the ids whose stream metadata is filtered by, such as"
                " producers = [7250143892215637714]; an admitone pipeline's are in its books --json"
            )
        if self.strict_keys and not self.filter_replays:
            raise ValueError("strict_keys quarantines what filter_replays would pass: set both")
        return self


class TopicSettings(Section):
    """One destination of admitted events (RTE-1)."""

    family: str = Field(min_length=1)
    topic: str = Field(min_length=1, pattern=TOPIC_NAME)
    event_types: tuple[str, ...] = Field(min_length=1)
    partitions: int = Field(default=4, ge=1, le=10_000)
    replication: int = Field(default=1, ge=1)
    key_fields: tuple[str, ...] = ("metadata.partitionKey",)
    retention: DurationMs = 604_800_000
    cleanup_policy: Literal["delete", "compact", "compact,delete"] = "delete"
    record_key: Literal["stream_metadata", "business_key"] = "stream_metadata"
    partitioner: Literal["profile", "source"] = "profile"
    filter_replays: bool = True
    required: bool = False

    @model_validator(mode="after")
    def _compaction_removes_no_admission(self) -> TopicSettings:
        if self.record_key == "business_key" and self.cleanup_policy != "delete":
            raise ValueError(
                f'cleanup_policy = "{self.cleanup_policy}" with record_key = "business_key" lets the broker remove'
                " an admitted record as soon as another one has its key, and nobody could tell it from one that was"
                ' never written: expected cleanup_policy = "delete" or record_key = "stream_metadata"'
            )
        return self


DEFAULT_TOPICS = (
    TopicSettings(
        family="traffic",
        topic="admitted.traffic",
        event_types=("page_view", "product_view", "api_request", "search", "purchase"),
    ),
)

"""What runs it all: the Spark session and the HTTP service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from admitone.settings.section import DurationMs, Section


class SparkSettings(Section):
    """The session the command line starts; a session of your own ignores this."""

    master: str = "local[2,4]"
    driver_memory: str = "2g"
    shuffle_partitions: int = Field(default=2, ge=1)
    checkpoints: str = "data/checkpoints"
    options: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _no_speculation(self) -> SparkSettings:
        if self.options.get("spark.speculation", "false").lower() == "true":
            raise ValueError("spark.speculation runs two copies of a task: set it to false")
        return self


class ServiceSettings(Section):
    """The HTTP service: where it listens, and how much it takes on."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8600, ge=0, le=65_535)
    slots: int = Field(default=1, ge=1, le=16)
    max_body: int = Field(default=8_000_000, ge=1_000, le=1 << 30)
    max_batch: int = Field(default=1_000, ge=1, le=100_000)
    max_waiting: int = Field(default=10_000, ge=1)
    max_page: int = Field(default=1_000, ge=1, le=10_000)
    max_windows: int = Field(default=1_500, ge=1, le=100_000)
    max_watchers: int = Field(default=100, ge=1, le=10_000)
    door_timeout: DurationMs = 30_000
    answer_timeout: DurationMs = 30_000
    evidence_interval: DurationMs = 10_000
    log: Literal["all", "errors"] = "errors"

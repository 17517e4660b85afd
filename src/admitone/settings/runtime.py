"""What runs it all: the Spark session and the HTTP service."""

from __future__ import annotations

from pydantic import Field, model_validator

from admitone.settings.section import Section


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
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65_535)

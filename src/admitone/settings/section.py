"""What every table of the file has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from admitone.core.durations import parse_duration_ms


def _duration(value: Any) -> Any:
    return parse_duration_ms(value) if isinstance(value, str) else value


TOPIC_NAME = r"^[A-Za-z0-9._-]+$"
DurationMs = Annotated[int, BeforeValidator(_duration), Field(gt=0)]


class Section(BaseModel):
    """A table of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

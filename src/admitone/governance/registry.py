"""The schemas an event can be checked against, by event type and major version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

import jsonschema_rs
import orjson

from admitone.core.envelope import IsValid

_FILE = re.compile(r"(?P<event_type>.+)\.(?P<major>\d+)\.\d+\.\d+\.json")


@cache
def embedded_schemas() -> Mapping[str, Mapping[int, IsValid]]:
    """Return a validator for each event type and major version that comes with the package."""
    found: dict[str, dict[int, IsValid]] = {}
    for file in resources.files("admitone.governance").joinpath("schemas").iterdir():
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        validator = jsonschema_rs.validator_for(orjson.loads(file.read_bytes()))
        found.setdefault(match["event_type"], {})[int(match["major"])] = validator.is_valid
    return found

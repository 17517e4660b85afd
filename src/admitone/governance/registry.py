"""The schemas an event can be checked against, by event type and major version.

One file for each version, `TYPE.MAJOR.MINOR.PATCH.json`; of a major version the newest counts. Those that the templates
of `init` name come with the package; an operator's own files add event types, or take the place of a version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jsonschema_rs
import orjson

from admitone.core.envelope import IsValid
from admitone.core.errors import ConfigurationError
from admitone.settings.boundary import Texts

_FILE = re.compile(r"(?P<event_type>.+)\.(?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)\.json")

Validators = Mapping[str, Mapping[int, IsValid]]


@cache
def schemas(texts: Texts = ()) -> Validators:
    """Return a validator for each event type and major version: the package's, and those of further files."""
    return {
        event_type: {major: _validator(name, text) for major, (name, text) in versions.items()}
        for event_type, versions in newest_schemas(texts).items()
    }


def newest_schemas(texts: Texts = ()) -> dict[str, dict[int, tuple[str, str]]]:
    """Return the file that counts for each event type and major version: its name and what it holds."""
    found = _newest(_embedded())
    for event_type, versions in _newest(texts).items():
        found.setdefault(event_type, {}).update(versions)
    return found


def _embedded() -> Texts:
    folder = resources.files("admitone.governance").joinpath("schemas")
    return tuple((file.name, file.read_text("utf-8")) for file in folder.iterdir())


def _newest(texts: Texts) -> dict[str, dict[int, tuple[str, str]]]:
    found: dict[str, dict[int, tuple[tuple[int, int], tuple[str, str]]]] = {}
    for name, text in texts:
        match = _FILE.fullmatch(name)
        if match is None:
            raise ConfigurationError(
                f"Expected a schema to be named like refund.1.0.0.json, got {name!r}.",
                "name it TYPE.MAJOR.MINOR.PATCH.json, or put it elsewhere",
            )
        versions = found.setdefault(match["event_type"], {})
        major, minor = int(match["major"]), (int(match["minor"]), int(match["patch"]))
        if major not in versions or versions[major][0] < minor:
            versions[major] = minor, (name, text)
    return {
        event_type: {major: file for major, (_, file) in versions.items()}
        for event_type, versions in found.items()
    }


def _validator(name: str, text: str) -> IsValid:
    try:
        is_valid: IsValid = jsonschema_rs.validator_for(
            orjson.loads(text), retriever=_refuse_elsewhere
        ).is_valid
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"Expected a JSON Schema in {name}: {reason}.", "correct the file"
        ) from error
    return is_valid


def _refuse_elsewhere(place: str) -> dict[str, Any]:
    """Let a schema be all there is: what it takes from elsewhere could change, or not be there."""
    raise ValueError(f"{place} is not in the file")

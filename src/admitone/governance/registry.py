"""The schemas an event can be checked against, by event type and major version.

One file for each version, `TYPE.MAJOR.MINOR.PATCH.json`; of a major version the newest counts. Those of the five event
types come with the package; a folder of one's own adds event types, or takes the place of a version that is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import jsonschema_rs
import orjson

from admitone.core.envelope import IsValid
from admitone.core.errors import ConfigurationError

_FILE = re.compile(r"(?P<event_type>.+)\.(?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)\.json")

Validators = Mapping[str, Mapping[int, IsValid]]


def schemas(folder: Path | None) -> Validators:
    """Return a validator for each event type and major version: the package's, and those of a folder."""
    found = {event_type: dict(versions) for event_type, versions in _embedded().items()}
    for event_type, versions in (_in_folder(folder) if folder else {}).items():
        found.setdefault(event_type, {}).update(versions)
    return found


@cache
def _embedded() -> Validators:
    return _newest(resources.files("admitone.governance").joinpath("schemas").iterdir())


def _in_folder(folder: Path) -> Validators:
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"Expected schemas in {folder}: {error.strerror}.",
            "make the folder, or correct folder of [schemas]",
        ) from error
    for file in files:
        if file.suffix == ".json" and _FILE.fullmatch(file.name) is None:
            raise ConfigurationError(
                f"Expected names such as refund.1.0.0.json in {folder}, got {file.name!r}.",
                "name it TYPE.MAJOR.MINOR.PATCH.json, or put it elsewhere",
            )
    return _newest(files)


def _newest(files: Iterable[Traversable]) -> Validators:
    found: dict[str, dict[int, tuple[tuple[int, int], IsValid]]] = {}
    for file in files:
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        versions = found.setdefault(match["event_type"], {})
        major, minor = int(match["major"]), (int(match["minor"]), int(match["patch"]))
        if major not in versions or versions[major][0] < minor:
            versions[major] = minor, _validator(file)
    return {
        event_type: {major: is_valid for major, (_, is_valid) in versions.items()}
        for event_type, versions in found.items()
    }


def _validator(file: Traversable) -> IsValid:
    try:
        is_valid: IsValid = jsonschema_rs.validator_for(orjson.loads(file.read_bytes())).is_valid
    except (OSError, ValueError, jsonschema_rs.ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"Expected a JSON Schema in {file.name}: {reason}.", "correct the file"
        ) from error
    return is_valid

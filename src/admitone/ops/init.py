"""A home folder to begin with: a commented admitone.toml, one for each profile in `templates/`."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from admitone.core.errors import ConfigurationError


class Profile(StrEnum):
    """A set of stores to begin with."""

    EMBEDDED = "embedded"
    PRODUCTION = "production"


def template(profile: Profile) -> str:
    """Return a profile's configuration; that of the embedded stores has every default."""
    return (files("admitone.ops") / "templates" / f"{profile}.toml").read_text(encoding="utf-8")


def write_configuration(folder: Path, profile: Profile) -> Path:
    """Write a profile's configuration into a folder, where there is none yet."""
    from admitone.settings import FILE_NAME  # here, so that the command line starts at once

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE_NAME
    if file.exists():
        raise ConfigurationError(f"{file} is there already.", "edit it, or choose another --home")
    file.write_text(template(profile), encoding="utf-8")
    return file

"""Reads the file and the environment, and says what is wrong with them."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import SettingsError

from admitone.core.errors import ConfigurationError
from admitone.settings.whole import Settings

FILE_NAME = "admitone.toml"


def load_settings(home: Path | str = ".", **overrides: Any) -> Settings:
    """Read `admitone.toml` in the home folder, or the defaults where there is none."""
    home = Path(home)
    file = home / FILE_NAME
    values: dict[str, Any] = {}
    if file.exists():
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"Cannot read {file}: {error.strerror}.", "mend its permissions"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{file} is not valid TOML: {error}.", "mend that line"
            ) from error
        _refuse_secrets(values, file)
    for section, changes in overrides.items():
        table = values.setdefault(section, {})
        table.update(changes)
    try:
        # Absolute, because tasks of a pipeline may run in another folder.
        settings = Settings(**values).model_copy(update={"home": home.absolute()})
    except ValidationError as error:
        raise ConfigurationError(_explain(error), f"mend {file} or the environment") from error
    except SettingsError as error:
        raise ConfigurationError(
            f"{error}.", "a section's values have names of their own: ADMITONE_LEDGER__URL"
        ) from error
    settings.schemas.read(settings.home)
    return settings


def _refuse_secrets(values: dict[str, Any], file: Path) -> None:
    """Secrets come from the environment or from files of their own: this one is copied, shown and versioned."""
    for path in _secrets_in(values, Settings):
        variable = "ADMITONE_" + "__".join(path).upper()
        raise ConfigurationError(
            f"{file} holds a secret, {'.'.join(path)}: secrets come from the environment or from a file.",
            f"remove it there and set {variable}, or {path[-1]}_file",
        )
    for section in ("ledger", "results", "history"):
        table = values.get(section)
        url = table.get("url") if isinstance(table, dict) else None
        if isinstance(url, str) and _holds_a_password(url):
            raise ConfigurationError(
                f"{file} holds a secret, the password in {section}.url: secrets come from the environment or"
                " from a file.",
                f"remove it there and set ADMITONE_{section.upper()}__URL",
            )


def _holds_a_password(url: str) -> bool:
    address, _, options = url.partition("://")[2].partition("?")
    user, found, _ = address.rpartition("@")
    return (bool(found) and ":" in user) or "password=" in options


def _secrets_in(values: dict[str, Any], model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name in values.keys() & model.model_fields.keys():
        kind, value = model.model_fields[name].annotation, values[name]
        if kind is SecretStr:
            yield (name,)
        elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((name, *rest) for rest in _secrets_in(value, kind))


def _explain(error: ValidationError) -> str:
    return "; ".join(_explain_one(dict(problem)) for problem in error.errors())


def _explain_one(problem: dict[str, Any]) -> str:
    location = [str(part) for part in problem["loc"]]
    name = ".".join(location)
    if problem["type"] != "extra_forbidden":
        # A whole section is not quoted: a secret may be among its values.
        got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
        return f"{name or 'settings'}: {problem['msg']}{got}"
    known = _known_keys(location[:-1])
    nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.0)
    return f"unknown key {name}" + (f", did you mean {nearest[0]!r}?" if nearest else "")


def _known_keys(parents: list[str]) -> list[str]:
    model: Any = Settings
    for part in parents:
        if part.isdigit():
            continue
        annotation = model.model_fields[part].annotation
        arguments = getattr(annotation, "__args__", ())
        model = arguments[0] if arguments else annotation
    return [key for key in model.model_fields if key != "home"]

"""Every section and key of admitone.toml.

Types, defaults and limits are those of the settings. What a key means is its comment in the file that
`admitone init` writes, so that it is told once.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from scripts.reference.markdown import paragraph, table

from admitone.core.durations import format_duration, parse_duration_ms
from admitone.ops.init import Profile, template
from admitone.settings import Settings

Schema = dict[str, Any]
_HEAD: Final = re.compile(r"(?:# )?(\[+)([a-z_.]+)\]+")
_KEY: Final = re.compile(r"(?P<out># )?(?P<key>[a-z_]+) = (?P<value>.+?) +# (?P<meaning>.+)")
_KINDS: Final = {"string": "text", "boolean": "true or false", "object": "table"}
_LIMITS: Final = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
}


class _Written(NamedTuple):
    """A key in the commented file."""

    value: Any
    meaning: str


def sections() -> str:
    """Return each section with a table of its keys."""
    schema = Settings.model_json_schema()
    written = _written(template(Profile.EMBEDDED))
    return "\n\n".join(
        "\n\n".join(
            (
                f"## `{head}`",
                paragraph(section["description"]),
                table(
                    ("key", "type", "default", "meaning"),
                    (
                        _row(name, key, section, written)
                        for key, about in section["properties"].items()
                        if _section_of(about, schema) is None
                    ),
                ),
            )
        )
        for head, name, section in _sections(schema, schema)
    )


def _sections(within: Schema, schema: Schema, above: str = "") -> Iterator[tuple[str, str, Schema]]:
    """Yield every table of the file: its head, its name and its schema."""
    for key, about in within["properties"].items():
        section = _section_of(about, schema)
        if section is not None:
            name = f"{above}{key}"
            repeated = about.get("type") == "array"
            plain = any(
                _section_of(each, schema) is None for each in section["properties"].values()
            )
            if plain:
                yield (f"[[{name}]]" if repeated else f"[{name}]"), name, section
            yield from _sections(section, schema, f"{name}.")


def _section_of(about: Schema, schema: Schema) -> Schema | None:
    reference = about.get("$ref") or about.get("items", {}).get("$ref")
    return schema["$defs"][reference.rpartition("/")[2]] if reference else None


def _written(text: str) -> dict[tuple[str, str], _Written]:
    """Return what the commented file says of each key; of several entries of a list, in the first."""
    found: dict[tuple[str, str], _Written] = {}
    section = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            section = head[2]
        elif key := _KEY.match(line):
            value = tomllib.loads(f"value = {key['value']}")["value"]
            found.setdefault((section, key["key"]), _Written(value, key["meaning"]))
    return found


def _row(
    name: str, key: str, section: Schema, written: dict[tuple[str, str], _Written]
) -> tuple[str, ...]:
    about = section["properties"][key]
    if about.get("format") == "password":
        variable = f"ADMITONE_{name}__{key}".upper().replace(".", "__")
        return f"`{key}`", "secret", "", f"only from `{variable}`, or in `{key}_file`"
    value, meaning = written[name, key]
    lasts = "integer" in _types(about) and isinstance(value, str)
    kind = "duration" if lasts else _kind(about)
    return f"`{key}`", kind, _default(key, section, lasts, value), meaning


def _default(key: str, section: Schema, lasts: bool, written: Any) -> str:
    if key in section.get("required", ()):
        return "required"
    default = section["properties"][key]["default"]
    if default is None:
        return "none"
    if lasts:
        same = parse_duration_ms(written) == default
        default = written if same else format_duration(default)
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _types(about: Schema) -> set[str]:
    """Return what a value may be, besides left out."""
    kinds = [each.get("type") for each in (about, *about.get("anyOf", ()))]
    return {kind for kind in kinds if kind not in (None, "null")}


def _kind(about: Schema) -> str:
    if "enum" in about:
        return ", ".join(f"`{json.dumps(value)}`" for value in about["enum"])
    if "items" in about:
        return f"list of {_kind(about['items'])}"
    (kind,) = _types(about)
    limits = [words.format(f"{about[name]:,}") for name, words in _LIMITS.items() if name in about]
    return " ".join((_KINDS.get(kind, kind), *limits))

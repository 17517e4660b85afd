"""Families of topics, and what the hash of the map gives."""

from __future__ import annotations

import tomllib
from hashlib import sha256
from typing import Final

from scripts.reference.markdown import names, table

from admitone.core.routing import partition_of
from admitone.ops.init import Profile, template

_KEYS: Final = ("user_123", "merchant-9", "42", "a b", "é", "日本")
_COUNTS: Final = (3, 4, 12, 1000)


def families() -> str:
    """Return the families that `init --profile production` writes."""
    return table(
        ("family", "`key_fields`, in this order", "event types"),
        (
            (topic["family"], names(topic["key_fields"]), names(topic["event_types"]))
            for topic in tomllib.loads(template(Profile.PRODUCTION))["topics"]
        ),
    )


def hash_vectors() -> str:
    """Return keys, the beginning of their hash, and the partition each goes to."""
    return table(
        ("key", "first eight bytes", *(f"of {count}" for count in _COUNTS)),
        (
            (
                f"`{key}`",
                f"`{sha256(key.encode()).hexdigest()[:16]}`",
                *(str(partition_of(key, count)) for count in _COUNTS),
            )
            for key in _KEYS
        ),
    )

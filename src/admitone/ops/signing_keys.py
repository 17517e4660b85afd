"""The key ring, as an operator sees and changes it."""

from __future__ import annotations

from typing_extensions import TypedDict

from admitone.governance.key_ring import KeyDocument, open_key_ring
from admitone.infra.clock import wall_clock
from admitone.settings import Settings


class Keys(TypedDict):
    """Every key there ever was, oldest first."""

    keys: list[KeyDocument]


def listed(settings: Settings) -> Keys:
    """Return every key there ever was."""
    return {"keys": open_key_ring(settings).documents()}


def rotate(settings: Settings) -> Keys:
    """Make a new signing key, which signs from now on; the one before it is retired."""
    open_key_ring(settings).rotate(wall_clock())
    return listed(settings)


def retire(settings: Settings, key_id: str) -> Keys:
    """Let a key sign no more; what it signed stays good."""
    open_key_ring(settings).retire(key_id, wall_clock())
    return listed(settings)

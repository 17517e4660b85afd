"""Tokens for the service: what they are for, and how one is made."""

from __future__ import annotations

import hashlib
import secrets
from enum import StrEnum
from typing import Final

from typing_extensions import TypedDict

_PREFIX: Final = "admitone_"


class Role(StrEnum):
    """What a token is for."""

    READ = "read"
    OPERATE = "operate"
    INGEST = "ingest"


class TokenEntry(TypedDict):
    """What admitone.toml says of a token: it gives no access."""

    name: str
    role: Role
    hash: str


class NewToken(TypedDict):
    """A token, which is kept nowhere, and the entry that lets it in."""

    token: str
    entry: TokenEntry


def new_token(name: str, role: Role) -> NewToken:
    """Make a token.

    It has 256 random bits: it cannot be guessed from a hash that is quick to compute.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    return {"token": token, "entry": {"name": name, "role": role, "hash": hash_of(token)}}


def hash_of(token: str) -> str:
    """Return what is kept of a token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"

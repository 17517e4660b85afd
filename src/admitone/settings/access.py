"""Who may ask, act and deliver over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from admitone.settings.section import Section


class TokenSettings(Section):
    """One token: only its hash is kept, so this file gives nobody access."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")
    role: Literal["read", "operate", "ingest"]
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class AccessSettings(Section):
    """Without tokens every client that reaches the service may do everything, so it only listens on this machine."""

    tokens: tuple[TokenSettings, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> AccessSettings:
        names = [token.name for token in self.tokens]
        if len(set(names)) != len(names):
            raise ValueError("every token needs a name of its own: it stands in what is recorded")
        return self

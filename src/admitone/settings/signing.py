"""Closings: who signs them, and where the head of their chain is written besides."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from admitone.settings.section import Section


class KeySettings(Section):
    """The key ring, and a signing key that comes from elsewhere."""

    path: str = Field(default="keys", min_length=1)
    signing_key: SecretStr = SecretStr("")
    """An Ed25519 private key, PEM."""
    signing_key_file: str = ""


class ClosingSettings(Section):
    """What vouches for a closing beside the ledger."""

    sign: bool = True
    heads: tuple[str, ...] = ()
    """Files, URLs of an fsspec store, or `topic:NAME` of the log: each is told the head of every closing."""

    @field_validator("heads")
    @classmethod
    def _each_names_a_place(cls, heads: tuple[str, ...]) -> tuple[str, ...]:
        if any(not head or head == "topic:" for head in heads):
            raise ValueError(
                "expected a file, a URL such as s3://bucket/heads.jsonl, or topic:NAME"
            )
        return heads

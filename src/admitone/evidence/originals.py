"""The original bytes of one delivery."""

from __future__ import annotations

from admitone.evidence.deliveries import original

__all__ = ["original"]

"""A Merkle tree over leaves that come one after the other (RFC 6962): its root, and the proof for one of them.

Of the tree no more is held than the roots of its whole parts, one for each binary digit of the number of leaves.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of a leaf; it can never be taken for one of a node."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash over two nodes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


class Step(NamedTuple):
    """A neighbour on the way from a leaf to the root, and whether it stands on the left."""

    left: bool
    hash: bytes


class _Part(NamedTuple):
    """The root of a whole part of the tree, with the leaf that is to be proved in it."""

    height: int
    hash: bytes
    holds: bool


class MerkleTree:
    """Takes leaves in their order; `proved` is the number of the one whose proof is wanted."""

    def __init__(self, proved: int | None = None) -> None:
        self._proved = proved
        self._parts: list[_Part] = []
        self._size = 0
        self.proof: list[Step] = []

    def __len__(self) -> int:
        return self._size

    def add(self, leaf: bytes) -> None:
        """Add the hash of a leaf."""
        part = _Part(0, leaf, self._size == self._proved)
        self._size += 1
        while self._parts and self._parts[-1].height == part.height:
            part = self._joined(self._parts.pop(), part)
        self._parts.append(part)

    def root(self) -> bytes:
        """Return the root over all leaves; of no leaves that of nothing. The last that is asked of a tree."""
        if not self._parts:
            return hashlib.sha256(b"").digest()
        part = self._parts.pop()
        while self._parts:
            part = self._joined(self._parts.pop(), part)
        return part.hash

    def _joined(self, left: _Part, right: _Part) -> _Part:
        if left.holds:
            self.proof.append(Step(False, right.hash))
        elif right.holds:
            self.proof.append(Step(True, left.hash))
        height = max(left.height, right.height) + 1
        return _Part(height, node_hash(left.hash, right.hash), left.holds or right.holds)

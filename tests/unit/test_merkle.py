"""The tree that is built leaf by leaf: its root is that of the tree as RFC 6962 defines it, and every proof holds."""

from __future__ import annotations

import hashlib

import pytest

from admitone.core.merkle import MerkleTree, leaf_hash, node_hash


def defined_root(leaves: list[bytes]) -> bytes:
    """Return the root by the recursive definition: the left part is the largest power of two below the size."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    middle = 1 << (len(leaves) - 1).bit_length() - 1
    left, right = defined_root(leaves[:middle]), defined_root(leaves[middle:])
    return hashlib.sha256(b"\x01" + left + right).digest()


@pytest.mark.parametrize("size", [*range(20), 63, 64, 65, 1000])
def test_the_root_is_the_defined_one_and_every_proof_leads_to_it(size: int) -> None:
    leaves = [b"%d" % number for number in range(size)]
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf_hash(leaf))
    root = tree.root()
    assert root == defined_root(leaves)
    for number in range(0, size, max(1, size // 7)):
        proving = MerkleTree(number)
        for leaf in leaves:
            proving.add(leaf_hash(leaf))
        assert proving.root() == root
        reached = leaf_hash(leaves[number])
        for step in proving.proof:
            pair = (step.hash, reached) if step.left else (reached, step.hash)
            reached = node_hash(*pair)
        assert reached == root

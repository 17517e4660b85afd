"""What a run's receipts vouch for, as the leaves of one Merkle root.

A leaf is 249 bytes, big-endian: which event with which payload, from where to where, decided how, when, by which rules.

    identity, payload hash, published hash      32 bytes each
    source producer, partition, offset           8, 4, 8
    verdict                                      1
    bus partition, bus offset                    4, 8; -1 where nothing was published
    SHA-256 of the topic's name                 32; zeros where nothing was published
    hash of the rules                           32; zeros where an older version decided
    event time, decided at, published at         8 each, milliseconds; -1 where there is none

Closings of an older version have leaves without the last four. Receipts are ordered by source position, and by verdict
where a position has two receipts: one that says its fate is not known, and the one it got later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import VERDICT_CODES
from admitone.core.merkle import MerkleTree, Step, leaf_hash
from admitone.infra.spilled_rows import SpilledRows
from admitone.ledger.columns import fixed_bytes

FIRST_LEAF: Final = 1
LEAF: Final = 2
"""The versions of a leaf."""
_HASH = (np.uint8, 32)
_FIRST = [
    ("identity", *_HASH),
    ("payload_hash", *_HASH),
    ("published_hash", *_HASH),
    ("source_producer", ">i8"),
    ("source_partition", ">i4"),
    ("source_offset", ">i8"),
    ("verdict", "u1"),
    ("bus_partition", ">i4"),
    ("bus_offset", ">i8"),
    ("topic", *_HASH),
]
_ADDED = [
    ("rules_hash", *_HASH), ("event_time", ">i8"), ("decided_at", ">i8"), ("published_at", ">i8")
]  # fmt: skip
_LAYOUTS = {FIRST_LEAF: np.dtype(_FIRST), LEAF: np.dtype(_FIRST + _ADDED)}
_VERDICTS = pa.array([str(verdict) for verdict in VERDICT_CODES])
_HASHES: Final = ("identity", "payload_hash", "published_hash", "rules_hash")
_NUMBERS: Final = (
    "source_producer", "source_partition", "source_offset", "bus_partition", "bus_offset", "event_time",
    "decided_at", "published_at",
)  # fmt: skip
_LEAF_HASH: Final = slice(0, 4)
_PRODUCER, _PARTITION, _OFFSET, _VERDICT, _WIDTH = 4, 5, 6, 7, 8
_OFFSETS_TOGETHER: Final = 20
"""So many binary digits of an offset lie in one bucket."""
_SIGN = np.uint64(1 << 63)


class ReceiptTree:
    """Collects receipts, file by file, keeping a hash and a position of each, on the disk where they are many."""

    def __init__(self, leaf: int = LEAF) -> None:
        self.leaf = leaf
        self._layout = _LAYOUTS[leaf]
        self._rows = SpilledRows(_WIDTH)
        self._sources: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return self._rows.added

    def add(self, receipts: pa.Table) -> None:
        """Add the receipts of one file."""
        leaves = self.leaves(receipts)
        rows = np.empty((len(leaves), _WIDTH), dtype=np.uint64)
        hashes = b"".join(leaf_hash(leaf.tobytes()) for leaf in leaves)
        rows[:, _LEAF_HASH] = np.frombuffer(hashes, "<u8").reshape(-1, 4)
        rows[:, _PRODUCER] = leaves["source_producer"].astype(np.int64).view(np.uint64) ^ _SIGN
        rows[:, _PARTITION] = leaves["source_partition"].astype(np.uint64)
        rows[:, _OFFSET] = leaves["source_offset"].astype(np.uint64)
        rows[:, _VERDICT] = leaves["verdict"]
        buckets = np.empty(len(rows), dtype=np.uint64)
        pairs = rows[:, [_PRODUCER, _PARTITION]]
        for pair in np.unique(pairs, axis=0):
            source = (int(pair[0]), int(pair[1]))
            number = self._sources.setdefault(source, len(self._sources))
            chosen = (pairs == pair).all(axis=1)
            stretch = rows[chosen, _OFFSET] >> np.uint64(_OFFSETS_TOGETHER)
            buckets[chosen] = (np.uint64(number) << np.uint64(44)) | stretch
        self._rows.add(buckets, rows)

    def leaves(self, receipts: pa.Table) -> npt.NDArray[Any]:
        """Return the leaves of receipts, in their order."""
        names = self._layout.names or ()
        lines = np.zeros(receipts.num_rows, dtype=self._layout)
        for name in _HASHES:
            if name in names and name in receipts.column_names:
                column = receipts[name].combine_chunks()
                valid = np.asarray(column.is_valid())
                hashes = np.frombuffer(fixed_bytes(column.drop_null()), dtype=np.uint8)
                lines[name][valid] = hashes.reshape(-1, 32)
        for name in _NUMBERS:
            if name in names:
                lines[name] = receipts[name].fill_null(-1).to_numpy()
        lines["verdict"] = pc.index_in(receipts["verdict"], _VERDICTS).fill_null(255).to_numpy()
        topics = receipts["bus_topic"].combine_chunks().dictionary_encode()
        named = [hashlib.sha256(name.encode()).digest() for name in topics.dictionary.to_pylist()]
        table = np.frombuffer(b"".join([*named, bytes(32)]), dtype=np.uint8).reshape(-1, 32)
        lines["topic"] = table[topics.indices.fill_null(len(named)).to_numpy(zero_copy_only=False)]
        return lines

    def root(self) -> bytes:
        """Return the root over everything that was added, whatever the order."""
        return self._tree(None).root()

    def prove(self, leaf: bytes) -> tuple[int, list[Step], bytes] | None:
        """Return the number of a leaf, its proof, and the root; None where it was never added."""
        wanted, number = leaf_hash(leaf), None
        for index, found in enumerate(self._in_order()):
            if found == wanted:
                number = index
                break
        if number is None:
            return None
        tree = self._tree(number)
        root = tree.root()
        return number, tree.proof, root

    def _tree(self, proved: int | None) -> MerkleTree:
        tree = MerkleTree(proved)
        for found in self._in_order():
            tree.add(found)
        return tree

    def _in_order(self) -> Iterator[bytes]:
        """Yield the hashes of the leaves by source, offset and verdict."""
        ranks = {number: source for source, number in self._sources.items()}
        for bucket in sorted(
            self._rows.numbers(), key=lambda number: (ranks[number >> 44], number)
        ):
            rows = self._rows.bucket(bucket)
            order = np.lexsort((rows[:, _VERDICT], rows[:, _OFFSET]))
            data = np.ascontiguousarray(rows[order, _LEAF_HASH]).tobytes()
            for start in range(0, len(data), 32):
                yield data[start : start + 32]

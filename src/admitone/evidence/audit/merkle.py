"""What a run's receipts vouch for, as the leaves of one Merkle root.

A leaf is 193 bytes, big-endian: which event with which payload, from where to where, decided how.

    identity, payload hash, published hash      32 bytes each
    source producer, partition, offset           8, 4, 8
    verdict                                      1
    bus partition, bus offset                    4, 8; -1 where nothing was published
    SHA-256 of the topic's name                 32

Receipts are ordered by source position, and by verdict where a position has two receipts: one that says its fate
is not known, and the one it got later.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.closure import merkle_leaf, merkle_root_of
from admitone.core.decisions import VERDICT_CODES
from admitone.ledger.columns import fixed_bytes

_HASH = (np.uint8, 32)
_LAYOUT = np.dtype(
    [
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
)
_VERDICTS = pa.array([str(verdict) for verdict in VERDICT_CODES])
_ORDER = ("verdict", "source_offset", "source_partition", "source_producer")
_NUMBERS = ("source_producer", "source_partition", "source_offset", "bus_partition", "bus_offset")


class ReceiptTree:
    """Collects receipts, file by file, keeping a hash and a position of each."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = []
        self._keys: dict[str, list[np.ndarray]] = {name: [] for name in _ORDER}

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, receipts: pa.Table) -> None:
        """Add the receipts of one file."""
        lines = np.zeros(receipts.num_rows, dtype=_LAYOUT)
        for name in ("identity", "payload_hash", "published_hash"):
            column = receipts[name].combine_chunks()
            valid = np.asarray(column.is_valid())
            hashes = np.frombuffer(fixed_bytes(column.drop_null()), dtype=np.uint8)
            lines[name][valid] = hashes.reshape(-1, 32)
        for name in _NUMBERS:
            lines[name] = receipts[name].fill_null(-1).to_numpy()
        lines["verdict"] = pc.index_in(receipts["verdict"], _VERDICTS).fill_null(255).to_numpy()
        topics = receipts["bus_topic"].combine_chunks().dictionary_encode()
        named = [hashlib.sha256(name.encode()).digest() for name in topics.dictionary.to_pylist()]
        table = np.frombuffer(b"".join([*named, bytes(32)]), dtype=np.uint8).reshape(-1, 32)
        lines["topic"] = table[topics.indices.fill_null(len(named)).to_numpy(zero_copy_only=False)]
        data, width = lines.tobytes(), _LAYOUT.itemsize
        self._hashes += [
            merkle_leaf(data[start : start + width]) for start in range(0, len(data), width)
        ]
        for name in _ORDER:
            self._keys[name].append(lines[name].astype(np.int64))

    def root(self) -> bytes:
        """Return the root over everything that was added, whatever the order."""
        if not self._hashes:
            return merkle_root_of([])
        order = np.lexsort([np.concatenate(self._keys[name]) for name in _ORDER])
        return merkle_root_of([self._hashes[row] for row in order.tolist()])

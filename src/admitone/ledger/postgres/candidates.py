"""The candidates of a claim as PostgreSQL's binary COPY wants them, made in one go.

After a header of 19 bytes every row is its number of fields, then each field as its length and its bytes, big-endian
throughout; the end is a row with -1 fields. All our fields have a fixed size, so the rows are one numpy array.
"""

from __future__ import annotations

import numpy as np

from admitone.core.identity import KEY_BYTES
from admitone.ledger.claims import Deliveries

CANDIDATE_COLUMNS = "key uuid, payload_hash uuid, event_time bigint, ordinal integer"
_ROW = np.dtype(
    [
        ("fields", ">i2"),
        ("key_size", ">i4"), ("key", f"V{KEY_BYTES}"),
        ("payload_hash_size", ">i4"), ("payload_hash", f"V{KEY_BYTES}"),
        ("event_time_size", ">i4"), ("event_time", ">i8"),
        ("ordinal_size", ">i4"), ("ordinal", ">i4"),
    ]
)  # fmt: skip
_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"


def copied_candidates(deliveries: Deliveries, ordinals: np.ndarray) -> bytes:
    """Return deliveries as rows of `CANDIDATE_COLUMNS`, in key order."""
    chosen = ordinals.tolist()
    keys = np.frombuffer(b"".join([deliveries.keys[n] for n in chosen]), dtype=">u8")
    hashes = b"".join([deliveries.hashes[n] for n in chosen])
    rows = np.empty(len(chosen), dtype=_ROW)
    rows["fields"] = 4
    rows["key_size"] = rows["payload_hash_size"] = KEY_BYTES
    rows["event_time_size"] = 8
    rows["ordinal_size"] = 4
    rows["key"] = keys.view(f"V{KEY_BYTES}")
    rows["payload_hash"] = np.frombuffer(hashes, dtype=f"V{KEY_BYTES}")
    rows["event_time"] = deliveries.event_time[ordinals]
    rows["ordinal"] = ordinals
    high, low = keys[0::2].astype(np.uint64), keys[1::2].astype(np.uint64)
    return _BEGIN + rows[np.lexsort((low, high))].tobytes() + _END

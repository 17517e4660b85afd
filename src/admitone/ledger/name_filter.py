"""A small filter over the names in a block, so that a question about one event skips blocks it is not in.

Names are identities and event ids, each as a 64-bit number. Bit `(low + i * high) mod size` is set for i in 0..3, where
low and high are the halves of that number and the size is a power of two with ten bits or more for each name:
about one block in eighty is read in vain.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash

PROBES = 4
_BITS_EACH = 10
_SMALLEST = 64


def number_of_event(event_id: str) -> int:
    """Return the number an event id is filed under."""
    return xxhash.xxh3_64_intdigest(event_id.encode())


def number_of_identity(identity: bytes) -> int:
    """Return the number an identity is filed under."""
    return int.from_bytes(identity[:8], "little")


def filter_of(event_ids: Iterable[str | None], identities: np.ndarray) -> bytes:
    """Return the filter of a block, from its event ids and the first eight bytes of its identities."""
    numbers = {number_of_event(event_id) for event_id in event_ids if event_id is not None}
    wanted = np.fromiter(numbers, dtype=np.uint64, count=len(numbers))
    wanted = np.concatenate([wanted, np.unique(identities)])
    size = max(_SMALLEST, 1 << (len(wanted) * _BITS_EACH - 1).bit_length())
    bits = np.zeros(size, dtype=bool)
    low, high = wanted & np.uint64(0xFFFFFFFF), wanted >> np.uint64(32)
    for step in range(PROBES):
        bits[(low + np.uint64(step) * high) & np.uint64(size - 1)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def positions(number: int, size: int) -> list[int]:
    """Return the bits that must be set, in a filter of so many bits, where a name is present."""
    low, high = number & 0xFFFFFFFF, number >> 32
    return [(low + step * high) & (size - 1) for step in range(PROBES)]


def may_hold(packed: bytes, number: int) -> bool:
    """Tell whether a name may be in the block; False is certain."""
    return all(packed[bit >> 3] >> (bit & 7) & 1 for bit in positions(number, len(packed) * 8))

"""What a record on the log is, as a few numbers: two records with the same ones are the same record.

The headers that a ledger gives again when it reads a log back, its own numbers and moments, are told apart: of what
was read back they are not compared.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.wire import Header, header_column, one_array, positions_of

Longs = npt.NDArray[np.uint64]
GIVEN_AGAIN: Final = (Header.BLOCK, Header.ADMITTED_AT, Header.STREAM_TIME)
"""What a ledger that was restored cannot know of a record that it finds on the log.

Blocks that were decided by older versions, whose rows have no hash, did not write all of these.
"""
_WORDS: Final = 3
_NAMED: Final = (
    Header.IDENTITY, Header.PAYLOAD_HASH, Header.RUN, Header.CLASS, Header.EVENT_ID, Header.EVENT_TIME,
)  # fmt: skip
"""What the ledger says of a record without having its value."""


def whole_records(keys: Any, values: Any, headers: Any) -> Longs:
    """Return two numbers for everything a record carries but what is given again, and one for that."""
    headers = one_array(headers)
    entries = headers.flatten()
    names = entries.field(0).cast(pa.binary())
    pieces = _joined(_sized(names), _sized(entries.field(1)))
    again = pc.is_in(entries.field(0), pa.array(GIVEN_AGAIN))
    steady = _of_rows(headers, pc.if_else(again, pa.scalar(b""), pieces))
    renewed = _of_rows(headers, pc.if_else(again, pieces, pa.scalar(b"")))
    texts = _joined(_sized(keys), _sized(values), steady)
    return _numbers(texts, renewed)


def named_records(keys: Any, headers: Any) -> Longs:
    """Return the same of what the ledger itself says of a record: who it is, and where it comes from."""
    keys, headers = one_array(keys), one_array(headers)
    columns = [positions_of(keys, headers)]
    for name in _NAMED:
        rows, values = header_column(headers, name)
        found: list[bytes | None] = [None] * len(keys)
        for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
            found[row] = value
        columns.append(pa.array(found, pa.binary()))
    texts = _joined(*map(_sized, columns))
    return _numbers(texts, pa.array([b""] * len(texts), pa.binary()))


def _sized(column: Any) -> Any:
    """Return bytes behind their length, so that no two lists of them read the same; nothing is not empty."""
    column = one_array(column).cast(pa.binary())
    length = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(
        length, column, b":", null_handling="replace", null_replacement=b"-"
    )


def _joined(*columns: Any) -> Any:
    return pc.binary_join_element_wise(*columns, b"")


def _of_rows(headers: pa.ListArray, pieces: Any) -> Any:
    """Return what is said of each entry, joined for each row."""
    lengths = np.asarray(headers.value_lengths().fill_null(0))
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(edges), one_array(pieces)), b"")


def _numbers(texts: Any, renewed: Any) -> Longs:
    sha = hashlib.sha256
    joined = b"".join(
        sha(text).digest()[:16] + sha(again).digest()[:8]
        for text, again in zip(texts.to_pylist(), renewed.to_pylist(), strict=True)
    )
    return np.frombuffer(joined, "<u8").reshape(-1, _WORDS)

"""Settled pairs: what a worker remembers of the ledger's answers, so that it need not ask about repetitions again.

A pair is an identity and a payload hash, as much of both as an identity's row keeps, with the admission they belong to.
Only an answer of DUPLICATE is ever given from here, and it is the ledger's own:

- A pair is remembered when a block of this very source that admitted it, or found it settled, is settled itself. A
  settled block stays settled: no release, discard or retraction changes it. What was refused, is in flight, ambiguous
  or retracted is never remembered.
- It is answered only while its event is in the window of the delivery that asks.
- It is answered only if nobody can have taken its row over. That needs a stream time a whole retention ahead of the
  event; every claim first opens the segment of its stream time; so what is not a retention older than the end of the
  open segment is untouched. The ledger compares this once more while it holds the segment still.
- It is a source's own, it ends with the query that filled it, and with a ledger that went back (`ledger_rollback`):
  what a number says there may be another block.

Forgetting a pair costs a look-up and changes nothing. So the table has one place for each pair, chosen by its key, and
the newer one stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from admitone.core.decisions import CODE_OF_VERDICT, Verdict
from admitone.core.segment_times import oldest_live
from admitone.ledger.columns import digest_words
from admitone.ledger.model import Claimed, KnownRepeats

_PAIR: Final = np.dtype(
    [("key", "<u8", 2), ("hash", "<u8", 2), ("block", "<i8"), ("time", "<i8"), ("ordinal", "<i4")]
)
_DUPLICATE: Final = CODE_OF_VERDICT[Verdict.DUPLICATE]
_ADMITTED: Final = CODE_OF_VERDICT[Verdict.ADMITTED]
_NO_TIME: Final = np.iinfo(np.int64).min

Words = npt.NDArray[np.uint64]


class SettledPairs:
    """The pairs of one source partition, a bounded number of them."""

    def __init__(self, size: int) -> None:
        # Memory is taken page by page as pairs arrive: nobody pays for a cache that stays empty.
        self._pairs = np.zeros(size, _PAIR)

    def look(self, facts: pa.Table, retention_ms: int, since: int) -> KnownRepeats:
        """Return the deliveries that repeat a settled pair not older than a moment."""
        keys, hashes = _words(facts["identity"]), _words(facts["payload_hash"])
        places = self._places(keys)
        found = self._pairs[places]
        stream_time = facts["stream_time"].fill_null(_NO_TIME + retention_ms).to_numpy()
        mine = (
            (found["block"] > 0)
            & (found["key"] == keys).all(axis=1)
            & facts["identity"].is_valid().to_numpy()
        )
        live = found["time"] >= oldest_live(stream_time, retention_ms)
        # The ledger ends a block before a delivery whose first has left the window: let it see all of them.
        leaving = np.isin(places, places[mine & ~live])
        same = (found["hash"] == hashes).all(axis=1) & (found["time"] >= since)
        ordinals = np.flatnonzero(mine & live & same & ~leaving)
        chosen = found[ordinals]
        return KnownRepeats(ordinals, chosen["block"], chosen["ordinal"].astype(np.int32), since)

    def add(self, facts: pa.Table, claimed: Claimed, refused: tuple[int, ...]) -> None:
        """Remember the pairs of a block of this source that was settled."""
        verdict = claimed.verdicts["verdict"].to_numpy()
        admitted = np.flatnonzero(verdict == _ADMITTED)
        admitted = admitted[~np.isin(admitted, refused)]
        times = facts["event_time"].fill_null(_NO_TIME).to_numpy()[admitted]
        blocks = np.full(len(admitted), claimed.block.block_id)
        self._put(facts, admitted, blocks, admitted, times)
        held = claimed.held
        again = verdict[held.ordinals] == _DUPLICATE
        ordinals = held.ordinals[again]
        firsts = claimed.verdicts.take(pa.array(ordinals))
        self._put(
            facts,
            ordinals,
            firsts["first_block"].to_numpy(),
            firsts["first_ordinal"].to_numpy(),
            held.event_times[again],
        )

    def _put(
        self,
        facts: pa.Table,
        rows: np.ndarray,
        blocks: np.ndarray,
        ordinals: np.ndarray,
        times: np.ndarray,
    ) -> None:
        pairs = np.empty(len(rows), _PAIR)
        pairs["key"] = _words(facts["identity"])[rows]
        pairs["hash"] = _words(facts["payload_hash"])[rows]
        pairs["block"], pairs["ordinal"], pairs["time"] = blocks, ordinals, times
        self._pairs[self._places(pairs["key"])] = pairs

    def _places(self, keys: Words) -> Words:
        return keys[:, 0] % np.uint64(len(self._pairs))


def _words(column: pa.ChunkedArray) -> Words:
    """Return the first sixteen bytes of each digest as two numbers; whatever is there where there is none."""
    return digest_words(column)[:, :2]

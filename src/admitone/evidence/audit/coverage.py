"""What `verify` of a closed run covers: every column of the ledger, field of the artifact, kind of evidence file and
part of a record on the log, and by what; or why it need not.

A test compares these tables with what there is, and makes every edit that they call found.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from typing_extensions import TypedDict


class By(StrEnum):
    """What an edit is found by."""

    ROW = "the hash over the block's row"
    COLUMNS = "the hash over the block's columns"
    CHAIN = "blocks that chain from a source's first offset to its mark"
    RECOUNT = "computing it again from the columns it follows from"
    FILES = "the evidence files, which hold the same"
    ARTIFACT = "the signed artifact"
    SEAL = "the signature, and the chain of closings"
    HASH = "its own hash"
    LOG = "the records on the log"
    NAME = "the producer id that follows from it"


class Why(StrEnum):
    """Why something need not be covered."""

    LATER = "decides what comes later; a run that is closed takes nothing more"
    OWNER = "says who may write next, and nothing of what was written"
    COUNTER = "counts what was read again, and decides nothing"
    MOMENT = "when something was cleaned up may be; nothing depends on it"
    VERDICTS = "a list of what the verdicts say, which are recounted"
    PROGRAM = "says which version of the program made the tables, or whether a connection's last commit arrived"
    TOPICS = "what the topics of today are compared with"
    NUMBER = "a number of its own, by which nothing is found"


class Covered(NamedTuple):
    """One column, and what an edit of it is found by or why it need not be."""

    by: By | Why
    note: str = ""

    @property
    def found(self) -> bool:
        """Tell whether an edit of it is found."""
        return isinstance(self.by, By)


def _all(names: str, by: By | Why) -> dict[str, Covered]:
    return {name: Covered(by) for name in names.split()}


LEDGER: Final[dict[str, dict[str, Covered]]] = {
    "ledger": _all("ledger_id", By.SEAL),
    "source": {
        **_all("producer_id pipeline topic_id door", By.NAME),
        **_all("partition mark", By.CHAIN),
        "topic": Covered(By.ARTIFACT),
        "store": Covered(
            By.RECOUNT, "an admission boundary's identities are not a dedup pipeline's"
        ),
        "decided": Covered(By.RECOUNT),
        "stream_time": Covered(By.RECOUNT),
        "read_to": Covered(Why.LATER, "beyond the end of the log, or over records, it is found"),
        "epoch": Covered(Why.OWNER),
        **_all("re_read cached", Why.COUNTER),
        "active_at": Covered(Why.LATER),
    },
    "run": {
        **_all("run_id run_key", By.RECOUNT),
        **_all("state artifact", By.SEAL),
        "was_closed": Covered(Why.LATER),
    },
    "block": {
        **_all(
            "block_id producer_id partition after_offset first_offset last_offset deliveries epoch rules"
            " rules_hash claimed_at decided_at published_at destinations runs evidence_hash row_hash read_back",
            By.ROW,
        ),
        **_all("state refused verdict_bits reason_bits quarantined ambiguous", By.RECOUNT),
        "evidence_at": Covered(By.FILES, "whether, not when"),
        "awaits_operator": Covered(Why.LATER),
    },
    "block_run": _all("run_id block_id", By.RECOUNT),
    "facts": _all("block_id facts", By.COLUMNS),
    "verdicts": _all("block_id verdicts bus", By.COLUMNS),
    "names": _all("block_id filter", By.RECOUNT),
    "journal": {
        "block_id": Covered(By.RECOUNT),
        "deliveries": Covered(By.RECOUNT, "while it is kept: it expires"),
    },
    "place": _all("topic partition first_offset last_offset block_id", By.RECOUNT),
    "late": {
        **_all("block_id producer_id partition first destinations", By.LOG),
        "records": Covered(Why.LATER, "where the numbers of the next late publish begin"),
    },
    "resolution": {
        **_all(
            "resolution_id block_id cause action at published_at author reason changes", By.FILES
        ),
        "evidence_at": Covered(By.FILES, "whether, not when"),
    },
    "anomaly": {
        **_all("run_id run_key identity payload_hash block_id ordinal", Why.VERDICTS),
        "state": Covered(Why.VERDICTS, "one that was opened again is found"),
    },
    "evidence": _all("path kind run_id rows digest checksum", By.FILES),
    "evidence_block": _all("path block_id", By.FILES),
    "evidence_resolution": _all("path resolution_id", By.FILES),
    "rules": _all("hash document", By.HASH),
    "closing": _all("number run_id run_key statement seal head", By.SEAL),
    "closing_attempt": {
        **_all("run_id run_key at author closed document", By.ARTIFACT),
        "number": Covered(Why.NUMBER),
    },
    "generation": _all("pipeline generation", Why.OWNER),
    "store": _all("name retention open_start dropped_before", Why.LATER),
    "segment": _all("store start length", Why.LATER),
    "displaced": _all(
        "block_id ordinal start key payload_hash event_time first_block first_ordinal", Why.LATER
    ),
    "accepted_topic": _all("number cluster topic topic_id at author reason", Why.TOPICS),
    "upstream": _all(
        "producer_id partition upstream_producer upstream_partition highest last replayed"
        " order_violations",
        Why.LATER,
    ),
    "reading_back": _all("pipeline ends begun_at", Why.LATER),
    "schema_version": _all("component version", Why.PROGRAM),
    "last_transaction": _all("connection number at", Why.PROGRAM),
}
"""Every column of every ledger table; the tables of segments, which hold keys, are `Why.LATER` like `segment`."""

ARTIFACT: Final[dict[str, Covered]] = _all(
    "version run_id closed_at author attempts books marks merkle_root receipts leaf log evidence parameters"
    " waived gate",
    By.SEAL,
)
"""Every field of an artifact: the statement names its hash."""

EVIDENCE: Final[dict[str, Covered]] = {
    **_all("receipts quarantine archive resolutions", By.RECOUNT),
    **_all("closure.json seal.json", By.SEAL),
}
"""Every kind of evidence file: its bytes by their checksum, its rows by what the ledger calls for."""

RECORD: Final[dict[str, Covered]] = {
    "key": Covered(By.LOG),
    "value": Covered(By.LOG, "without an archive: who the event is and what it carries"),
    "headers": Covered(By.LOG, "of what was read back all but the numbers and moments given again"),
    "offset": Covered(By.LOG),
    "partition": Covered(By.LOG),
    "topic": Covered(By.LOG),
    "timestamp": Covered(Why.MOMENT, "the log's own; windows are counted by it"),
}
"""Every part of a record on the log."""


class NotCovered(TypedDict):
    """Something that `verify` does not cover, and why."""

    what: str
    why: str


def not_covered() -> list[NotCovered]:
    """Return what is not covered."""
    named = {
        f"ledger {table}.{name}": each
        for table, names in LEDGER.items()
        for name, each in names.items()
    }
    named |= {f"artifact {name}": each for name, each in ARTIFACT.items()}
    named |= {f"evidence {name}": each for name, each in EVIDENCE.items()}
    named |= {f"log record {name}": each for name, each in RECORD.items()}
    return [{"what": what, "why": str(each.by)} for what, each in named.items() if not each.found]

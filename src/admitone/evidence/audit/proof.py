"""What a stranger can check without our stores: a receipt with its way to a signed root, or all receipts of a run."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

from admitone.core.decisions import CODE_OF_VERDICT, Verdict
from admitone.core.errors import AdmitoneError, IntegrityError, NotFound
from admitone.evidence.audit.artifact import Artifact
from admitone.evidence.audit.chain_of_closings import closing_of
from admitone.evidence.audit.identities import keyed_sources
from admitone.evidence.audit.receipt_tree import ReceiptTree
from admitone.evidence.audit.seal import SealedClosing, sealed_bytes, sealed_document
from admitone.evidence.evidence_file import CLOSURE, SEAL, read_file
from admitone.evidence.evidence_rows import RECEIPTS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.ledger.decision_rows import SourcePosition
from admitone.ledger.model import ChainedClosing, Source
from admitone.ledger.port import LedgerReader

PROOF_VERSION: Final = 1
EXPORTED: Final = "receipts.jsonl.gz"
_OFFSETS_TOGETHER: Final = 16


class ProvedPlace(TypedDict):
    """Where on the log an event is."""

    topic: str
    partition: int
    offset: int | None
    offset_kind: str


class ProvedReceipt(TypedDict):
    """A receipt as strangers get it: moments are milliseconds since 1970."""

    run: str
    event_class: str | None
    event_id: str | None
    named_by: Literal["envelope", "key"]
    identity: str | None
    payload_hash: str | None
    published_hash: str | None
    verdict: str
    reason: str | None
    source: SourcePosition
    bus: ProvedPlace | None
    rules: str | None
    event_time: int | None
    decided_at: int | None
    published_at: int | None
    block: int


class ProofStep(TypedDict):
    """A neighbour on the way from a leaf to the root."""

    left: bool
    hash: str


class ProofDocument(TypedDict):
    """Everything that is needed to check one receipt, but the key."""

    version: int
    receipt: ProvedReceipt
    number: int
    path: list[ProofStep]
    closing: SealedClosing


class ClosedRun:
    """A closed run with its statement."""

    def __init__(self, run_id: str, ledger: LedgerReader, store: EvidenceStore) -> None:
        data, closing = ledger.closure(run_id), closing_of(run_id, ledger.closings())
        if run_id not in ledger.runs():
            raise NotFound(
                f"There is no run {run_id!r}.", "admitone books shows the runs there are"
            )
        if data is None or closing is None:
            raise AdmitoneError(
                f"Run {run_id!r} {'is open' if data is None else 'was closed before closings were signed'}:"
                " nothing vouches for its receipts.",
                f"admitone close {run_id}",
            )
        self.run_id = run_id
        self.data = data
        self.artifact: Artifact = orjson.loads(data)
        self.closing: ChainedClosing = closing
        self._store = store
        self._keyed = keyed_sources(ledger)
        self._files = {file.path: file for file in ledger.evidence_files(run_id)}

    def receipts(self) -> Iterator[pa.Table]:
        """Yield the receipts that were closed, file by file."""
        for entry in self.artifact["evidence"]:
            if entry["kind"] != RECEIPTS:
                continue
            file = self._files.get(entry["path"])
            if file is None or file.digest.hex() != entry["digest"]:
                raise IntegrityError(
                    f"{entry['path']} is not listed as it was when run {self.run_id!r} was closed.",
                    f"admitone verify {self.run_id} says what was changed",
                )
            yield read_file(self._store, file)

    def document(self, row: dict[str, Any]) -> ProvedReceipt:
        """Return one receipt as strangers get it."""
        source = Source(row["source_producer"], row["source_partition"])
        placed = row["bus_topic"] is not None
        return {
            "run": self.run_id,
            "event_class": row["event_class"],
            "event_id": row["event_id"],
            "named_by": "key" if source in self._keyed else "envelope",
            "identity": _hex(row["identity"]),
            "payload_hash": _hex(row["payload_hash"]),
            "published_hash": _hex(row["published_hash"]),
            "verdict": row["verdict"],
            "reason": row["reason"],
            "source": {**source._asdict(), "offset": row["source_offset"]},  # type: ignore[typeddict-item]
            "bus": {
                "topic": row["bus_topic"],
                "partition": row["bus_partition"],
                "offset": row["bus_offset"],
                "offset_kind": row["offset_kind"],
            }
            if placed
            else None,
            "rules": _hex(row.get("rules_hash")),
            "event_time": row["event_time"],
            "decided_at": row["decided_at"],
            "published_at": row["published_at"],
            "block": row["block"],
        }


def prove(run: ClosedRun, block_id: int, ordinal: int, verdict: str) -> ProofDocument:
    """Return the proof of the receipt of one delivery."""
    tree, chosen = ReceiptTree(run.artifact["leaf"]), None
    for receipts in run.receipts():
        tree.add(receipts)
        hit = pc.and_(
            pc.and_(pc.equal(receipts["block"], block_id), pc.equal(receipts["ordinal"], ordinal)),
            pc.equal(receipts["verdict"], verdict),
        )
        found = receipts.filter(hit)
        chosen = found if found.num_rows else chosen
    if chosen is None:
        raise NotFound(
            f"Delivery {block_id}-{ordinal} has no receipt in the closing of run {run.run_id!r}.",
            "it may have been decided after the run was closed",
        )
    proved = tree.prove(tree.leaves(chosen)[0].tobytes())
    if proved is None or proved[2].hex() != run.artifact["merkle_root"]:
        raise IntegrityError(
            f"The receipts of run {run.run_id!r} do not give the root it was closed with.",
            f"admitone verify {run.run_id} says what was changed",
        )
    number, path, _ = proved
    return {
        "version": PROOF_VERSION,
        "receipt": run.document(chosen.to_pylist()[0]),
        "number": number,
        "path": [{"left": step.left, "hash": step.hash.hex()} for step in path],
        "closing": sealed_document(run.closing),
    }


def export(run: ClosedRun, folder: Path) -> int:
    """Write a closed run for strangers into a new folder; return how many receipts it has."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise AdmitoneError(f"{folder} is there already.", "name a new folder") from None
    (folder / SEAL).write_bytes(sealed_bytes(run.closing))
    (folder / CLOSURE).write_bytes(run.data)
    written = 0
    with TemporaryDirectory(dir=folder) as temporary:
        parts = Path(temporary)
        for receipts in run.receipts():
            lines: dict[str, list[bytes]] = defaultdict(list)
            for row in receipts.to_pylist():
                lines[_part(row)].append(_key(row) + orjson.dumps(run.document(row)) + b"\n")
            for name, some in lines.items():
                with (parts / name).open("ab") as part:
                    part.writelines(some)
        with gzip.open(folder / EXPORTED, "wb") as out:
            for stretch in sorted(parts.iterdir()):
                ordered = sorted(stretch.read_bytes().splitlines(keepends=True))
                written += len(ordered)
                out.writelines(line[_KEY_SIZE:] for line in ordered)
    return written


_KEY_SIZE: Final = 60
"""Producer, partition, offset and verdict in digits that sort as they do."""


def _part(row: dict[str, Any]) -> str:
    producer = row["source_producer"] + 2**63
    stretch = row["source_offset"] >> _OFFSETS_TOGETHER
    return f"{producer:020d}-{row['source_partition']:010d}-{stretch:020d}"


def _key(row: dict[str, Any]) -> bytes:
    producer, verdict = row["source_producer"] + 2**63, CODE_OF_VERDICT[Verdict(row["verdict"])]
    return b"%020d%018d%020d%02d" % (
        producer, row["source_partition"], row["source_offset"], verdict
    )  # fmt: skip


def verifier() -> str:
    """Return the program that strangers check with."""
    from importlib import resources

    return resources.files("admitone.evidence").joinpath("verify_receipt.py").read_text("utf-8")


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()

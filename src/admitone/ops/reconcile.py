"""What became of every publish that got no answer, and what an older ledger does not know."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from typing_extensions import TypedDict

from admitone.boundary import admission_options, dedup_options, open_all
from admitone.boundary.reconciliation import AWAITS_OPERATOR, Reconciled, look_only
from admitone.boundary.reconciliation import reconcile as resolve
from admitone.boundary.restore.read_back import ReadBack, ReadBackDocument, read_all_back
from admitone.core.decisions import BlockState
from admitone.core.errors import AmbiguityRemains
from admitone.ledger import open_ledger_reader
from admitone.ledger.decision_rows import SourcePartition, partition_document
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport import open_transport


class ReconciledBlock(TypedDict):
    """What was found out about one block."""

    block: int
    source: SourcePartition
    deliveries: int
    state: BlockState
    found: str


class ReconciliationDocument(TypedDict):
    """What was found out, how many blocks are still unsettled, and what was read back before."""

    blocks: list[ReconciledBlock]
    remaining: int
    restored: list[ReadBackDocument]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was found out."""

    found: list[Reconciled]
    remaining: int
    """How many blocks are still in flight or of unknown fate."""
    restored: list[ReadBack]

    def document(self) -> ReconciliationDocument:
        """Return it as the interface spells it."""
        return {
            "blocks": [block_document(entry) for entry in self.found],
            "remaining": self.remaining,
            "restored": [entry.document() for entry in self.restored],
        }

    def refusal(self) -> AmbiguityRemains:
        """Return what is said while something is unsettled."""
        awaited = [entry.block.block_id for entry in self.found if entry.how == AWAITS_OPERATOR]
        if awaited:
            return AmbiguityRemains(
                f"{self.remaining} blocks are still of unknown fate. The log does not hold"
                f" {', '.join(map(str, awaited))}; whether an operator gave them up after the ledger was copied is"
                " not known any more.",
                "admitone reconcile publishes them late; admitone quarantine discard --block N --reason ... gives"
                " one up",
            )
        return AmbiguityRemains(
            f"{self.remaining} blocks are still in flight or of unknown fate.",
            "admitone reconcile, when the log can be read; what stays can be given up:"
            " admitone quarantine discard --block N --reason ...",
        )


def block_document(entry: Reconciled) -> ReconciledBlock:
    """Return what was found out about one block, as the interface spells it."""
    return {
        "block": entry.block.block_id,
        "source": partition_document(entry.block.source),
        "deliveries": entry.block.deliveries,
        "state": entry.state,
        "found": entry.how,
    }


def reconcile(settings: Settings, *, restored: bool = False) -> Reconciliation:
    """Resolve in-flight and ambiguous admissions against the log.

    With `restored` the ledger is an older copy, and what the log holds beyond it is read back first. Nothing is
    published late then: asking again without it is the operator's word that nobody gave up what is absent.
    """
    with open_all(settings) as boundaries:
        again = read_all_back(settings, boundaries) if restored else []
        for boundary in boundaries:
            boundary.must_know_its_log()
        found = [
            entry
            for boundary in boundaries
            for entry in resolve(boundary, by_operator=not restored)
        ]
        return Reconciliation(found, _unsettled(boundaries[0].ledger), again)


def look(settings: Settings) -> Reconciliation:
    """Say what reconciling would find now, and change nothing."""
    options = admission_options(settings), dedup_options(settings)
    with closing(open_ledger_reader(settings)) as ledger, closing(open_transport(settings)) as log:
        found = [entry for each in options for entry in look_only(ledger, log, each)]
        return Reconciliation(found, _unsettled(ledger), [])


def _unsettled(ledger: LedgerReader) -> int:
    return len(ledger.blocks(states=[BlockState.IN_FLIGHT, BlockState.AMBIGUOUS]))

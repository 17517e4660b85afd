"""Closing a run.

1. Write what evidence of this pipeline is pending.
2. Check the gate, from one snapshot of the ledger; red is refused with every blocker.
3. Set aside what the ledger does not list in the run's folder: from now on whatever is not listed was added.
4. Write the artifact to `closure.json`, and what was signed of it to `seal.json`.
5. Close the run in the ledger, which refuses when a block was claimed for it since the check began.
6. Tell the second places the head of the chain of closings.

A crash between 4 and 5 leaves a `closure.json` of an open run, which means nothing and is replaced by the next closing.
One between 5 and 6 leaves a head untold: the next closing tells it.

Every try is kept in the ledger, also one that the gate refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field

import orjson

from admitone.core.closure import Gate, GateDocument
from admitone.core.errors import NotFound, RunIsRed
from admitone.evidence import open_evidence_store, open_evidence_writer
from admitone.evidence.audit.artifact import Artifact, make_artifact, to_bytes
from admitone.evidence.audit.chain_of_closings import copies_of
from admitone.evidence.audit.gate import gate_of, judge
from admitone.evidence.audit.heads import tell_heads
from admitone.evidence.audit.run_audit import audit_run
from admitone.evidence.audit.seal import next_closing, sealed_bytes
from admitone.evidence.evidence_file import closure_path, seal_path
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.set_aside import set_aside, write_beside
from admitone.governance.key_ring import open_key_ring
from admitone.infra.clock import wall_clock
from admitone.ledger.model import Attempt, ChainedClosing, Closure
from admitone.ledger.port import Ledger, LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport


class ClosingDocument(GateDocument):
    """A run's gate, whether it is closed, its artifact where this closed it, and where unknown evidence is now."""

    closed: bool
    artifact: Artifact | None
    head: str | None
    set_aside: list[str]
    untold: list[str]


@dataclass(frozen=True, slots=True)
class Closing:
    """The gate of a run and, where this closed it, the artifact it was closed with."""

    gate: Gate
    artifact: Artifact | None = None
    sealed: ChainedClosing | None = None
    """Its place in the chain of closings, where this closed it."""
    already: bool = False
    """Whether it was closed before."""
    set_aside: list[str] = field(default_factory=list)
    """Where files are now that the ledger does not know."""
    untold: list[str] = field(default_factory=list)
    """Second places that could not be told the head, and why."""

    @property
    def head(self) -> str | None:
        """Return the head of the chain of closings, where this closed the run."""
        return None if self.sealed is None else self.sealed.head.hex()

    @property
    def closed(self) -> bool:
        """Tell whether the run is closed now."""
        return self.already or self.artifact is not None

    @property
    def refused(self) -> bool:
        """Tell whether a red gate keeps the run open: one that is closed stays so, whatever is waived this time."""
        return not self.closed and not self.gate.green

    def document(self) -> ClosingDocument:
        """Return it as the interface spells it."""
        return {
            **self.gate.document(),
            "closed": self.closed,
            "artifact": self.artifact,
            "head": self.head,
            "set_aside": self.set_aside,
            "untold": self.untold,
        }

    def refusal(self) -> RunIsRed:
        """Return why the run stays open."""
        return RunIsRed(
            f"Run {self.gate.run_id!r} stays open: {len(self.gate.blockers)} kinds of blockers.",
            "resolve each, then close again",
        )


def look(
    run_id: str,
    ledger: LedgerReader,
    transport: Transport,
    settings: Settings,
    waived: Collection[str] = (),
) -> Closing:
    """Check the gate of a run, and change nothing."""
    gate = gate_of(run_id, ledger, transport, settings, waived)
    return Closing(gate, already=ledger.runs()[run_id] == "CLOSED")


def close_run(
    run_id: str,
    ledger: Ledger,
    transport: Transport,
    settings: Settings,
    waived: Collection[str] = (),
    author: str = "",
    now: int | None = None,
) -> Closing:
    """Close a run if it is green; return its gate either way. One that is closed already stays as it is."""
    if ledger.runs().get(run_id) == "CLOSED":
        return look(run_id, ledger, transport, settings, waived)
    _check_families(settings, waived)
    store = open_evidence_store(settings)
    closed_at = wall_clock() if now is None else now
    # 1. Write what is pending
    open_evidence_writer(settings, ledger).write_pending(closed_at)
    # 2. Check
    seen = ledger.newest_block(run_id)
    with ledger.snapshot():
        audit = audit_run(run_id, ledger, transport, settings, closed_at)
        gate = judge(audit, settings, waived)
        artifact = (
            make_artifact(audit, gate, ledger, settings, waived, closed_at, author)
            if gate.green
            else None
        )
    attempt = Attempt(run_id, closed_at, author, gate.green, _attempted(gate, waived))
    if artifact is None:
        ledger.note_attempt(attempt)
        return Closing(gate)
    # 3. Set leftovers aside
    aside = [set_aside(store, path) for path in audit.leftovers]
    # 4. Write the artifact
    signer = open_key_ring(settings).signer(closed_at) if settings.closing.sign else None
    closing = next_closing(ledger, artifact, signer)
    written = {closure_path(run_id): to_bytes(artifact), seal_path(run_id): sealed_bytes(closing)}
    for path, data in written.items():
        aside.append(write_beside(store, path, data))
    # 5. Close
    try:
        ledger.close_run(Closure(attempt, written[closure_path(run_id)], closing), seen)
    except RunIsRed:
        _take_back(run_id, ledger, store)
        raise
    for path, data in written.items():
        if store.read(path) != data:
            # An operator who was refused wrote after us.
            store.write(path, data)
    # 6. Tell the head
    untold = tell_heads(settings, transport, ledger.closings())
    kept = [path for path in aside if path is not None]
    return Closing(gate, artifact, closing, set_aside=kept, untold=untold)


def _attempted(gate: Gate, waived: Collection[str]) -> str:
    return orjson.dumps(
        {"waived": sorted(waived), "gate": gate.document()}, default=asdict
    ).decode()


def _take_back(run_id: str, ledger: Ledger, store: EvidenceStore) -> None:
    """Leave the artifact and the seal of the operator who closed the run first, or none."""
    for path, data in copies_of(run_id, ledger).items():
        if data is None:
            store.delete(path)
        else:
            store.write(path, data)


def _check_families(settings: Settings, waived: Collection[str]) -> None:
    required = sorted({entry.family for entry in settings.topics if entry.required})
    for family in waived:
        if family not in required:
            raise NotFound(
                f"There is no required family {family!r} to waive.",
                f"one of {', '.join(required)}" if required else "no family is required",
            )

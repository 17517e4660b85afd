"""Is the chain of all closings whole, and does it hold what lies outside the ledger?"""

from __future__ import annotations

from collections.abc import Sequence

from admitone.core.errors import AdmitoneError
from admitone.evidence.audit.compared import Comparison
from admitone.evidence.audit.heads import heads_at
from admitone.evidence.audit.seal import sealed_bytes, wrong_in_chain
from admitone.evidence.evidence_file import closure_path, seal_path
from admitone.governance.key_ring import open_key_ring
from admitone.ledger.model import ChainedClosing
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport


def closing_of(run_id: str, chain: Sequence[ChainedClosing]) -> ChainedClosing | None:
    """Return the last closing of a run; a run whose ledger was restored may have been closed again."""
    return next((each for each in reversed(chain) if each.run_id == run_id), None)


def copies_of(run_id: str, ledger: LedgerReader) -> dict[str, bytes | None]:
    """Return what is to lie beside a run's evidence: its artifact and its seal, None where it has none."""
    artifact, closing = ledger.closure(run_id), closing_of(run_id, ledger.closings())
    sealed = None if artifact is None or closing is None else sealed_bytes(closing)
    return {closure_path(run_id): artifact, seal_path(run_id): sealed}


def compare_chain(
    run_id: str,
    chain: Sequence[ChainedClosing],
    ledger: LedgerReader,
    transport: Transport,
    settings: Settings,
    notes: list[str],
    head: str | None = None,
) -> Comparison:
    """Check the chain of closings, the heads in second places, and the one that is given."""
    differences = list(wrong_in_chain(chain, open_key_ring(settings), ledger.ledger_id()))
    heads = {closing.number: closing.head.hex() for closing in chain}
    if head is not None and head.lower() not in heads.values():
        differences.append(f"head {head} is of no closing of this ledger")
    for place in settings.closing.heads:
        try:
            told = heads_at(settings, transport, place)
        except (AdmitoneError, OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"the heads in {place} cannot be read: {error}")
            continue
        differences += [
            f"closing {each.number} is not the one that {place} was told of"
            for each in told
            if heads.get(each.number) != each.head
        ]
        missing = heads.keys() - {each.number for each in told}
        if missing:
            notes.append(
                f"{place} was not told of closing {min(missing)}; the next closing tells it"
            )
    if closing_of(run_id, chain) is not None and ledger.runs().get(run_id) != "CLOSED":
        differences.append(f"run {run_id!r} was closed, and the ledger says that it is open")
    last = f", head {chain[-1].head.hex()}" if chain else ""
    return Comparison("chain of closings", f"{len(chain)} closings{last}", differences)

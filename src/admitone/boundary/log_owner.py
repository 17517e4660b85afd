"""The log belongs to one ledger for each pipeline's name.

Two ledgers under one name would each decide every position, so neither would find one on the log that it does not know,
and both would publish. So the log keeps the id of the ledger that its topics were claimed for, and whoever is about to
publish compares it with its own: at the start, and at intervals while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from admitone.core.errors import IntegrityError
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Transport


def refuse_another_ledger(
    ledger: LedgerReader, transport: Transport, pipeline: str, topics: Sequence[str]
) -> None:
    """Raise when one of these topics belongs to another ledger; nothing changes."""
    _refuse_others(ledger.ledger_id(), pipeline, transport.owners(pipeline, topics))


def claim_log(
    ledger: LedgerReader, transport: Transport, pipeline: str, topics: Sequence[str]
) -> None:
    """Make topics this ledger's that are not claimed yet; raise when one belongs to another ledger."""
    mine = ledger.ledger_id()
    _refuse_others(mine, pipeline, transport.claim(pipeline, topics, mine))


def adopt_log(
    ledger: LedgerReader, transport: Transport, pipeline: str, topics: Sequence[str]
) -> None:
    """Make topics this ledger's, whosever they were: another ledger that still publishes to them stops soon."""
    transport.claim(pipeline, topics, ledger.ledger_id(), adopt=True)


def _refuse_others(mine: str, pipeline: str, owners: Mapping[str, str]) -> None:
    for topic, owner in owners.items():
        if owner != mine:
            raise IntegrityError(
                f"Topic {topic!r} belongs to ledger {owner} under the pipeline name {pipeline!r}, this one is"
                f" ledger {mine}: both would publish every event.",
                "name that ledger as url of [ledger], or give this pipeline another name of [pipeline]; if that"
                " ledger is lost, stop every pipeline on it and run admitone reconcile --restored, which reads back"
                " what the log holds and makes the topics this ledger's",
            )

"""The topics as they are, next to their contracts and to what was accepted: one look for the pipeline and the gate."""

from __future__ import annotations

from collections.abc import Iterable

from admitone.core.contract import Checked, Contract
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Transport
from admitone.transport.topic_contract import check_contracts


def check_topics(
    contracts: Iterable[Contract], ledger: LedgerReader, transport: Transport
) -> list[Checked]:
    """Compare topics with their contracts; nothing changes."""
    # Of each topic the last acceptance counts.
    accepted = {each.topic: each.topic_id for each in ledger.accepted_topics(transport.cluster)}
    return check_contracts(contracts, transport, accepted)

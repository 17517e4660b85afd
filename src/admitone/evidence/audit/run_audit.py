"""Everything that one look at a run's stores finds; the gate and `verify` judge it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from admitone.core.contract import Checked
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, NotFound
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.archive_audit import ArchiveAudit
from admitone.evidence.audit.chain_audit import ChainAudit, audit_chain
from admitone.evidence.audit.decision_audit import (
    BLOCK,
    RESOLUTION,
    DecisionAudit,
    Member,
    audit_decisions,
)
from admitone.evidence.audit.expected_records import ExpectedRecords
from admitone.evidence.audit.file_audit import FileAudit, audit_files, present_files, unlisted_files
from admitone.evidence.audit.known_records import KnownRecords
from admitone.evidence.audit.log_audit import LogAudit, ends_of
from admitone.evidence.audit.once_audit import OnceAudit
from admitone.evidence.audit.run_on_log import RunOnLog
from admitone.evidence.audit.scope import Scope
from admitone.evidence.audit.source_names import misnamed_sources
from admitone.evidence.evidence_rows import ARCHIVE
from admitone.evidence.topic_check import check_topics
from admitone.governance.topic_routes import envelope_routes, record_route
from admitone.infra.clock import wall_clock
from admitone.ledger.model import Anomaly
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport
from admitone.transport.topic_contract import dedup_contracts, destination_contracts


@dataclass(frozen=True, slots=True)
class RunAudit:
    """What the ledger, the evidence store and the log say about a run."""

    scope: Scope
    decisions: DecisionAudit
    files: FileAudit
    chain: ChainAudit
    once: OnceAudit
    log: LogAudit | None
    """None where the log was not looked at."""
    topics: list[Checked]
    """The destination topics next to their contracts, where the log was looked at."""
    anomalies: list[Anomaly]
    in_flight: int
    pending: frozenset[Member]
    """Blocks and resolutions of the run whose evidence is not written yet."""
    leftovers: list[str]
    """Files named as ours that the ledger does not list."""
    foreign: list[str]
    """Files in the run's folder that no writer of ours can have made."""
    archive: bool
    unkept_rules: list[str]
    """Hashes that decisions name and under which the ledger keeps no rules, or others."""
    miscounted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By kind of evidence, how many rows are missing and how many are there more than once."""

    @property
    def pending_now(self) -> list[Member]:
        """Return what is pending of what is looked at."""
        return [member for member in self.pending if member not in self.decisions.later]


def audit_run(
    run_id: str,
    ledger: LedgerReader,
    transport: Transport | None,
    settings: Settings,
    now: int | None = None,
) -> RunAudit:
    """Look at a run in every store, from one snapshot of the ledger; at the log where one is given."""
    try:
        return _audit_run(run_id, ledger, transport, settings, wall_clock() if now is None else now)
    except (LookupError, AttributeError, TypeError, ValueError, pa.ArrowException) as error:
        # Columns that lost their length, or refer to what is not there, break in many places.
        raise IntegrityError(
            f"The ledger's rows of run {run_id!r} do not fit together: {error}.",
            "restore the ledger from a backup",
        ) from error


def _audit_run(
    run_id: str, ledger: LedgerReader, transport: Transport | None, settings: Settings, now: int
) -> RunAudit:
    store, archive = open_evidence_store(settings), settings.evidence.archive
    routes = [*envelope_routes(settings), record_route(settings)]
    # The files first: what is there now and not listed by the time the ledger is read was left behind.
    present = present_files(run_id, store)
    with ledger.snapshot():
        if run_id not in ledger.runs():
            raise NotFound(
                f"There is no run {run_id!r}.", "admitone books shows the runs there are"
            )
        scope = Scope.of(run_id, ledger)
        once, log = OnceAudit(), None
        if transport is not None:
            ends = scope.ends
            if ends is None:
                ends = ends_of(transport, [route.topic for route in routes])
            log = LogAudit(
                transport, KnownRecords(ledger), now, whole=archive, ends=ends,
                compacted=_compacted(settings),
            )  # fmt: skip
        on_log = None if log is None else RunOnLog(log, ExpectedRecords(ledger, routes))
        chain = audit_chain(scope, ledger)
        if transport is not None:
            chain.misnamed += misnamed_sources(ledger, transport)
        decisions = audit_decisions(scope, ledger, once, on_log, archive=archive)
        archived = ArchiveAudit(ledger, {route.topic: route for route in routes}, once, on_log)
        files = audit_files(run_id, ledger, store, decisions, archived, scope.leaf)
        once.compare(settings.dedup.retention)
        if log is not None:
            log.compare()
        leftovers, foreign = unlisted_files(run_id, present, ledger)
        found = RunAudit(
            scope=scope,
            decisions=decisions,
            files=files,
            chain=chain,
            once=once,
            log=log,
            topics=_topics(ledger, transport, settings, decisions),
            anomalies=ledger.anomalies(run_id),
            in_flight=sum(
                block.runs.get(run_id, 0) for block in ledger.blocks(states=[BlockState.IN_FLIGHT])
            ),
            pending=_pending(ledger, decisions),
            leftovers=leftovers,
            foreign=foreign,
            archive=archive,
            unkept_rules=_unkept(ledger, decisions),
        )
    found.miscounted.update(_miscounted(found))
    return found


def _topics(
    ledger: LedgerReader,
    transport: Transport | None,
    settings: Settings,
    decisions: DecisionAudit,
) -> list[Checked]:
    """Return the topics that a run's admissions go to: those of the map, or a dedup pipeline's."""
    if transport is None:
        return []
    contracts = () if decisions.only_deduplicated else destination_contracts(settings)
    if decisions.deduplicated:
        contracts += dedup_contracts(settings)
    return check_topics(contracts, ledger, transport)


def _unkept(ledger: LedgerReader, decisions: DecisionAudit) -> list[str]:
    kept = ledger.rules()
    return sorted(
        each.hex()
        for each in decisions.rules
        if hashlib.sha256(kept.get(each, b"")).digest() != each
    )


def _compacted(settings: Settings) -> frozenset[str]:
    return frozenset(
        contract.topic for contract in destination_contracts(settings) if contract.keeping.compacts
    )


def _pending(ledger: LedgerReader, decisions: DecisionAudit) -> frozenset[Member]:
    called = {member for members in decisions.called_for.values() for member in members}
    return frozenset(waiting_members(ledger) & called)


def waiting_members(ledger: LedgerReader) -> set[Member]:
    """Return the blocks and resolutions whose evidence is not written yet."""
    waiting = {(BLOCK, number) for number in ledger.pending_evidence()}
    return waiting | {(RESOLUTION, number) for number in ledger.pending_resolutions()}


def _miscounted(found: RunAudit) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the kinds of evidence where a block's or a resolution's rows are in no file, or in several."""
    for kind, called in found.decisions.called_for.items():
        missing = repeated = 0
        for member, rows in called.items():
            times = found.files.holding[kind][member]
            if times == 0 and member not in found.pending and (kind != ARCHIVE or found.archive):
                missing += rows
            repeated += rows * max(times - 1, 0)
        if missing or repeated:
            yield kind, (missing, repeated)


def being_written(path: str, pending: Collection[Member]) -> bool:
    """Tell whether a file that is not listed may be the one a writer is about to record."""
    number = path.rpartition("/")[2].partition("-")[0]
    kind = RESOLUTION if number.startswith("r") else BLOCK
    return (kind, int(number.removeprefix("r"))) in pending

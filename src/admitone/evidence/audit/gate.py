"""The gate of a run: five criteria, each from what the stores hold (CLS-1, CLS-2)."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from admitone.core.closure import Blocker, Check, Criterion, Gate
from admitone.evidence.audit.decision_audit import RESOLUTION
from admitone.evidence.audit.log_audit import LogAudit
from admitone.evidence.audit.run_audit import RunAudit, audit_run
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport


def gate_of(
    run_id: str,
    ledger: LedgerReader,
    transport: Transport,
    settings: Settings,
    waived: Collection[str] = (),
) -> Gate:
    """Check the five criteria of a run; of a closed one, up to the marks of its closing."""
    return judge(audit_run(run_id, ledger, transport, settings), settings, waived)


def judge(audit: RunAudit, settings: Settings, waived: Collection[str] = ()) -> Gate:
    """Return the gate that follows from what was found."""
    run = shlex.quote(audit.scope.run_id)
    return Gate(
        audit.scope.run_id,
        (
            _identity(audit, run),
            _contradictions(audit, run),
            _drift(audit, run),
            _evidence(audit, run),
            _contract(audit, settings, run, waived),
        ),
    )


def _identity(audit: RunAudit, run: str) -> Check:
    found, once = audit.decisions, audit.once
    show = f"admitone decisions --run {run} --verdict ADMITTED"
    twice = f"identities were admitted twice: {_few(once.examples)}"
    blockers = (
        *_some("identity", found.wrong_identities, "admissions have another identity than their fields give", show),
        *_some("admitted twice", once.repeated, twice, show),
    )  # fmt: skip
    evidence = f"{found.admissions} admissions recomputed, {once.admissions} sorted by identity"
    return Check(Criterion.IDENTITY, evidence, blockers)


def _contradictions(audit: RunAudit, run: str) -> Check:
    found = audit.decisions
    show = f"admitone quarantine list --run {run} --reason PAYLOAD_MISMATCH"
    listed = {(anomaly.identity, anomaly.payload_hash) for anomaly in audit.anomalies}
    unlisted = sum(count for pair, count in found.contradictions.items() if pair not in listed)
    blockers = (
        *_some("contradiction", len(audit.anomalies), "open contradictions", show),
        *_some("contradiction", unlisted, "deliveries contradict an admission, unresolved", show),
        *_some(
            "overwritten",
            found.misjudged,
            "duplicates or contradictions that their first admission does not bear out",
            f"admitone decisions --run {run} --verdict DUPLICATE",
        ),
    )
    evidence = (
        f"{len(audit.anomalies)} open anomalies; {found.contradictions.total()} contradictions recounted from the"
        f" verdicts; {found.seconds} duplicates and contradictions compared with their first"
    )
    return Check(Criterion.CONTRADICTION, evidence, blockers)


def _drift(audit: RunAudit, run: str) -> Check:
    files, verify = audit.files, f"admitone verify {run}"
    blockers = [
        Blocker("damaged evidence", 1, f"{damage.file.path} {_said(damage.what)}", f"{verify} --repair")
        for damage in files.damaged
    ]  # fmt: skip
    blockers += [
        Blocker("drift", 1, f"{damage.file.path} {damage.what}", verify) for damage in files.strange
    ]
    found, show = audit.decisions, f"admitone decisions --run {run} --verdict"
    other = "archived envelopes have another identity or payload hash than the ledger says"
    originals = (
        f"original deliveries are not those that were decided: blocks {_few(found.journals)}"
    )
    blockers += [
        *_some("drift", files.drifted, other, verify),
        *_each("drift", found.altered, "blocks are not as they were decided", verify),
        *_each("drift", audit.chain.altered, "rows of blocks do not say what they said", verify),
        *_each("drift", found.underived, "what is kept beside blocks does not follow from them", verify),
        *_some("drift", len(found.journals), originals, verify),
        *_some("drift", found.unplaced, "admissions have no place on the log", f"{show} ADMITTED"),
        *_some("drift", found.unexplained, "replays that no delivery before them bears out", f"{show} REPLAYED"),
    ]  # fmt: skip
    evidence = (
        f"{audit.decisions.blocks} blocks rehashed; {len(files.files)} files with {files.rows.total()} rows compared;"
        f" {files.envelopes} archived envelopes recomputed"
    )
    if audit.decisions.replays:
        evidence += f"; {audit.decisions.replays} replays compared with what came before them"
    if audit.log is not None:
        blockers += _on_log(audit.log, run)
        evidence += (
            f"; {audit.log.compared} records on the log compared, {audit.log.gone} no longer there"
        )
    return Check(Criterion.DRIFT, evidence, tuple(blockers))


def _on_log(log: LogAudit, run: str) -> list[Blocker]:
    show = f"admitone decisions --run {run} --verdict ADMITTED"
    seen = _few(log.examples)
    return [
        *_some("drift", log.wrong, f"admissions are not on the log as they were decided: {seen}", show),
        *_some("stranger", log.unknown, f"records of ours are on the log that the ledger does not know: {seen}", show),
        *_some("drift", log.vanished, f"stretches of the log are gone that their topic keeps: {seen}", show),
    ]  # fmt: skip


def _said(what: str) -> str:
    # One sentence for both, because the remedy is the same.
    return "is missing or was changed" if what in ("is missing", "was changed") else what


def _evidence(audit: RunAudit, run: str) -> Check:
    found = audit.decisions
    pending = audit.pending_now
    resolutions = sum(kind == RESOLUTION for kind, _ in pending)
    in_flight = audit.in_flight if audit.scope.marks is None else 0
    write = f"admitone verify {run} --repair"
    blockers = [
        *_some("in_flight", in_flight, "deliveries in flight", "admitone reconcile"),
        *_some("ambiguous", found.ambiguous, "deliveries of unknown fate", "admitone reconcile"),
        *_some("pending evidence", len(pending) - resolutions, "blocks whose evidence is not written yet", write),
        *_some("pending evidence", resolutions, "resolutions whose evidence is not written yet", write),
    ]  # fmt: skip
    for reason, count in sorted(found.quarantined.items()):
        show = f"admitone quarantine list --run {run} --reason {reason}"
        blockers += _some("quarantined", count, f"quarantined, {reason}", show)
    for kind, (missing, repeated) in sorted(audit.miscounted.items()):
        show = f"admitone verify {run}"
        blockers += _some("missing evidence", missing, f"decisions without {kind}", show)
        blockers += _some("extra evidence", repeated, f"rows of {kind} more than once", show)
    chain, books = audit.chain, f"admitone books --run {run}"
    decided = found.counts.total()
    hidden = "blocks hold deliveries of the run and are not found under it"
    undecided = f"deliveries undecided: {found.deliveries} came, {decided} are"
    foreign, verify = "files in the run's folder that are no evidence", f"admitone verify {run}"
    rules = "rules that decisions name are not kept"
    blockers += [
        *_each("unbalanced", chain.broken, "the blocks of a source do not chain", books),
        *_each("unbalanced", chain.miscounted, "counters or stream times of sources are wrong", books),
        *_each("missing evidence", audit.unkept_rules, rules, "admitone rules show"),
        *_each("unbalanced", chain.misnamed, "sources are not what they are named", books),
        *_some("unbalanced", abs(chain.of_run - found.blocks), hidden, books),
        *_some("unbalanced", abs(found.deliveries - decided), undecided, books),
        *_each("extra evidence", audit.foreign, foreign, verify),
    ]  # fmt: skip
    counted = ", ".join(f"{rows} {kind}" for kind, rows in sorted(audit.files.rows.items()))
    evidence = (
        f"{found.deliveries} deliveries decided in {found.blocks} blocks; {chain.rows} blocks chained;"
        f" rows called for one by one against {counted or 'no rows'}"
    )
    return Check(Criterion.EVIDENCE, evidence, tuple(blockers))


def _contract(audit: RunAudit, settings: Settings, run: str, waived: Collection[str]) -> Check:
    blockers = [
        Blocker("contract", 1, f"topic {checked.topic!r} {difference}", "admitone topics check")
        for checked in audit.topics
        for difference in checked.differences
    ]
    required: dict[str, bool] = {}
    for entry in settings.topics:
        if entry.required and not audit.decisions.only_deduplicated:
            filled = entry.topic in audit.decisions.topics
            required[entry.family] = required.get(entry.family, False) or filled
    for family, filled in required.items():
        if not filled and family not in waived:
            blockers += _some(
                "empty family",
                1,
                f"family {family!r} has no admissions",
                f"admitone close {run} --waive {shlex.quote(family)}",
            )
    evidence = f"{len(audit.topics)} topics compared, {len(required)} families required"
    if waived:
        evidence += f", waived: {', '.join(sorted(waived))}"
    return Check(Criterion.CONTRACT, evidence, tuple(blockers))


def _some(kind: str, count: int, what: str, command: str) -> tuple[Blocker, ...]:
    return (Blocker(kind, count, what, command),) if count else ()


def _each(kind: str, names: Collection[object], what: str, command: str) -> tuple[Blocker, ...]:
    return _some(kind, len(names), f"{what}: {_few(names)}", command)


def _few(names: Collection[object]) -> str:
    shown = [str(name) for name in names][:5]
    return ", ".join(shown) + (" ..." if len(names) > 5 else "")

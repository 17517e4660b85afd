"""Do the stores fit together? Reads everything, trusts nothing; the demo's check, on stores that are open here."""

from __future__ import annotations

from collections.abc import Iterator

from admitone.demo import check as demo
from admitone.demo.traffic import Truth
from admitone.evidence.audit.run_audit import RunAudit, audit_run
from admitone.ledger import open_ledger
from admitone.ledger.books import books
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport


def check(settings: Settings, truth: Truth) -> demo.Compared:
    """Compare everything with the generator's truth; say what was compared, and what differs."""
    ledger = open_ledger(settings)
    found = demo.check(settings, truth, list(decisions(ledger, Filter())), books(ledger))
    return found._replace(problems=found.problems + check_evidence(ledger, settings))


def check_log(ledger: LedgerReader, transport: Transport, settings: Settings) -> list[str]:
    """Compare the admitted topics with the pinned admissions, record by record; return what differs."""
    return demo.check_log(transport, settings, list(decisions(ledger, Filter())))


def check_evidence(ledger: LedgerReader, settings: Settings) -> list[str]:
    """Compare the evidence with the ledger: intact, and a row for every decision that needs one."""
    problems = [f"block {number} has no evidence" for number in ledger.pending_evidence()]
    problems += [f"resolution {number} has no evidence" for number in ledger.pending_resolutions()]
    for run in ledger.runs():
        problems += _problems(audit_run(run, ledger, None, settings))
    return problems + [
        f"the books of run {run['run_id']} do not balance"
        for run in books(ledger)["runs"]
        if not run["balanced"]
    ]


def _problems(audit: RunAudit) -> Iterator[str]:
    run, found, files = audit.scope.run_id, audit.decisions, audit.files
    for damage in (*files.damaged, *files.strange):
        yield f"{damage.file.path} {damage.what}"
    for kind, (missing, repeated) in audit.miscounted.items():
        yield f"run {run} lacks {missing} rows of {kind} and has {repeated} more than once"
    for count, what in (
        (files.drifted, "archived envelopes are not what the ledger says"),
        (found.wrong_identities, "admissions have another identity than their fields give"),
        (found.misjudged, "duplicates or contradictions do not fit their first admission"),
        (found.unexplained, "replays are borne out by nothing before them"),
        (found.unplaced, "admissions have no place on the log"),
        (len(found.altered), "blocks are not as they were decided"),
        (len(audit.foreign), "files in its folder are no evidence"),
    ):
        if count:
            yield f"run {run}: {count} {what}"

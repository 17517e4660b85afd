"""Is a run still what it was? Everything is computed again from the stores and compared.

Of a closed run with the artifact of its closing; what was delivered after that does not disturb it, but its evidence is
compared with the ledger too. Of an open run the evidence is compared with the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, cast

import orjson
from typing_extensions import TypedDict

from admitone.core.closure import Check, Criterion
from admitone.core.errors import NotFound
from admitone.evidence import open_evidence_store, open_evidence_writer
from admitone.evidence.audit.artifact import (
    ARTIFACT_VERSION,
    Artifact,
    attempt_entries,
    file_entry,
    to_bytes,
)
from admitone.evidence.audit.chain_of_closings import closing_of, compare_chain, copies_of
from admitone.evidence.audit.compared import Comparison
from admitone.evidence.audit.coverage import NotCovered, not_covered
from admitone.evidence.audit.gate import judge
from admitone.evidence.audit.log_audit import LogAudit, Place
from admitone.evidence.audit.repair import Repaired, repair_run
from admitone.evidence.audit.run_audit import RunAudit, audit_run, being_written
from admitone.evidence.audit.scope import marks_of
from admitone.evidence.audit.seal import sealed_bytes, statement_of
from admitone.evidence.evidence_file import closure_path, seal_path
from admitone.evidence.evidence_store import EvidenceStore
from admitone.infra.clock import wall_clock
from admitone.ledger.books import books
from admitone.ledger.model import ChainedClosing, Source
from admitone.ledger.port import Ledger, LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport

_FIRST, _CHAINED = 1, 2
"""The first version of an artifact, and the one since which closings are chained."""
_ADDED = {"author", "attempts", "leaf", "log"}
"""What artifacts have since then."""
_WRONG_EVEN_WHILE_OPEN = frozenset({
    "identity", "admitted twice", "overwritten", "damaged evidence", "drift", "stranger", "unbalanced",
    "missing evidence", "extra evidence",
})  # fmt: skip
_GOING_ON = frozenset({"re_read", "order_violations"})


class VerificationDocument(TypedDict):
    """Everything that was compared; with --repair also what was repaired before."""

    run_id: str
    state: str
    verified: bool
    comparisons: list[Comparison]
    notes: list[str]
    not_covered: list[NotCovered]
    repaired: NotRequired[Repaired]


@dataclass(slots=True)
class Verification:
    """Everything that was compared."""

    run_id: str
    state: str
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)
    repaired: Repaired | None = None

    @property
    def verified(self) -> bool:
        """Tell whether nothing differs."""
        return not any(comparison.differences for comparison in self.comparisons)

    def document(self) -> VerificationDocument:
        """Return it as the interface spells it."""
        found: VerificationDocument = {
            "run_id": self.run_id,
            "state": self.state,
            "verified": self.verified,
            "comparisons": self.comparisons,
            "notes": self.notes,
            "not_covered": not_covered(),
        }
        if self.repaired is not None:
            found["repaired"] = self.repaired
        return found


def verify_run(
    run_id: str,
    ledger: LedgerReader,
    transport: Transport,
    settings: Settings,
    head: str | None = None,
) -> Verification:
    """Compare a run's stores with each other and, where it is closed, with its artifact.

    The chain of closings must hold the heads that second places know, and the one that is given.
    """
    store = open_evidence_store(settings)
    with ledger.snapshot():
        audit = audit_run(run_id, ledger, transport, settings)
        state = ledger.runs()[run_id]
        data = ledger.closure(run_id) if state == "CLOSED" else None
        comparisons: list[Comparison] = []
        notes: list[str] = []
        closings = ledger.closings()
        comparisons.append(
            compare_chain(run_id, closings, ledger, transport, settings, notes, head)
        )
        if state == "CLOSED":
            comparisons.append(_copy(closure_path(run_id), data, store))
            comparisons += _sealed(run_id, data, closings, store, notes)
            comparisons += _artifact(run_id, data, audit, ledger, notes)
        elif closure_path(run_id) in store.list(closure_path(run_id).rpartition("/")[0]):
            notes.append("closure.json of a closing that did not finish: the next one replaces it")
        gate = judge(audit, settings, _waived(data))
    for check in gate.checks:
        if check.criterion is Criterion.CONTRACT:
            notes += [f"today {blocker.what}" for blocker in check.blockers]
        else:
            comparisons.append(_criterion(check, closed=state == "CLOSED"))
    comparisons.append(_additions(audit))
    if audit.pending:
        notes.append(f"evidence of {len(audit.pending)} blocks or resolutions is not written yet")
    return Verification(run_id, state, comparisons, notes)


def repair_and_verify(
    run_id: str,
    ledger: Ledger,
    transport: Transport,
    settings: Settings,
    head: str | None = None,
) -> Verification:
    """Write what is pending, and again what can be, then verify.

    A `closure.json` is written again only when all else bears the ledger's artifact out.
    """
    store = open_evidence_store(settings)
    if run_id not in ledger.runs():
        raise NotFound(f"There is no run {run_id!r}.", "admitone books shows the runs there are")
    open_evidence_writer(settings, ledger).write_pending(wall_clock())
    repaired = repair_run(run_id, ledger, store)
    found = verify_run(run_id, ledger, transport, settings, head)
    wrong = {comparison.what for comparison in found.comparisons if comparison.differences}
    copies = copies_of(run_id, ledger).items()
    mendable = {path.rpartition("/")[2]: (path, data) for path, data in copies if data is not None}
    if wrong and wrong <= mendable.keys():
        for path, data in (mendable[what] for what in sorted(wrong)):
            store.write(path, data)
            repaired.rewritten.append(path)
        found = verify_run(run_id, ledger, transport, settings, head)
    found.repaired = repaired
    return found


def _copy(path: str, data: bytes | None, store: EvidenceStore) -> Comparison:
    what = path.rpartition("/")[2]
    try:
        copy = store.read(path)
    except NotFound:
        return Comparison(what, "no bytes", [f"{path} is missing"])
    differences = [] if copy == data else [f"{path} is not what the ledger holds"]
    return Comparison(what, f"{len(copy)} bytes", differences)


def _sealed(
    run_id: str,
    data: bytes | None,
    closings: Sequence[ChainedClosing],
    store: EvidenceStore,
    notes: list[str],
) -> Iterator[Comparison]:
    """Compare an artifact with the statement that was made of it."""
    artifact, closing = _parsed(run_id, data), closing_of(run_id, closings)
    if artifact is not None and artifact["version"] < _CHAINED:
        notes.append("closed before closings were signed and chained")
        return
    if closing is None:
        yield Comparison("statement", "none", ["the chain of closings does not hold this one"])
        return
    yield _copy(seal_path(run_id), sealed_bytes(closing), store)
    differences = []
    if artifact is not None:
        said = orjson.loads(closing.statement)
        place = said["ledger"], said["number"], said["previous"]
        made = statement_of(artifact, *place, signed=said["signed"])
        differences = [
            f"{name} is {made.get(name)}, the statement says {said.get(name)}"
            for name in sorted(made.keys() | said.keys())
            if made.get(name) != said.get(name)
        ]
    if closing.seal is None:
        notes.append("the closing is not signed, as the configuration said")
    yield Comparison("statement", f"closing {closing.number}, head {closing.head.hex()}", differences)  # fmt: skip


def _artifact(
    run_id: str, data: bytes | None, audit: RunAudit, ledger: LedgerReader, notes: list[str]
) -> Iterator[Comparison]:
    artifact = _parsed(run_id, data)
    if artifact is None:
        said = "the ledger's artifact is none, or of another run or version"
        yield Comparison("closing artifact", f"{len(data or b'')} bytes", [said])
        return
    yield Comparison(
        "closing artifact", f"version {artifact['version']}, {len(artifact)} fields", []
    )
    yield _books(run_id, artifact, marks_of(data or b"") or {}, ledger)
    yield _marks(artifact, ledger)
    if artifact["version"] >= _CHAINED:
        yield _attempts(run_id, artifact, ledger)
        if audit.log is not None:
            yield _log(artifact, audit.log)
    root = audit.files.tree.root().hex()
    wrong = [f"the receipts give {root}, the artifact says {artifact['merkle_root']}"]
    counted = artifact["receipts"] == len(audit.files.tree)
    same = root == artifact["merkle_root"] and counted
    yield Comparison("merkle root", f"{len(audit.files.tree)} receipts", [] if same else wrong)
    yield _listed(artifact, audit, notes)


def _fields(version: int) -> set[str]:
    return set(Artifact.__annotations__) - (_ADDED if version < _CHAINED else set())


def _parsed(run_id: str, data: bytes | None) -> Artifact | None:
    """Return an artifact that is whole, in its canonical spelling; None for anything else."""
    try:
        artifact = orjson.loads(data or b"")
    except orjson.JSONDecodeError:
        return None
    whole = (
        isinstance(artifact, dict)
        and artifact.get("version") in (_FIRST, ARTIFACT_VERSION)
        and artifact.keys() == _fields(artifact["version"])
        and artifact["run_id"] == run_id
        and isinstance(artifact["books"], dict)
        and isinstance(artifact["gate"], dict)
        and artifact["gate"].get("gate") == "green"
        and marks_of(data or b"") is not None
        and isinstance(artifact["evidence"], list)
        and all(isinstance(entry, dict) and "path" in entry for entry in artifact["evidence"])
        and to_bytes(cast(Artifact, artifact)) == data
    )
    return cast(Artifact, artifact) if whole else None


def _waived(data: bytes | None) -> list[str]:
    try:
        waived = orjson.loads(data or b"{}").get("waived", [])
    except (orjson.JSONDecodeError, AttributeError):
        return []
    return [each for each in waived if isinstance(each, str)] if isinstance(waived, list) else []


def _books(
    run_id: str, artifact: Artifact, marks: dict[Source, int], ledger: LedgerReader
) -> Comparison:
    known = {info.source for info in ledger.sources()}
    if not known.issuperset(marks):
        return Comparison(
            "books", "", ["the artifact has marks of sources that the ledger does not know"]
        )
    runs = books(ledger, run_id, until=marks)["runs"]
    found = _lasting({**runs[0]} if runs else {})
    said = _lasting({**artifact["books"]})
    differences = [
        f"{name} {found.get(name)}, the artifact says {said.get(name)}"
        for name in sorted(found.keys() | said.keys())
        if found.get(name) != said.get(name)
    ]
    return Comparison("books", f"{said.get('deliveries')} deliveries", differences)


def _lasting(account: dict[str, Any]) -> dict[str, Any]:
    """Return the counters that a closing settles; re-reads and order violations go on being counted."""
    kept = {name: value for name, value in account.items() if name not in _GOING_ON}
    if isinstance(kept.get("partitions"), list):
        kept["partitions"] = [
            _lasting(partition) if isinstance(partition, dict) else partition
            for partition in kept["partitions"]
        ]
    return kept


def _marks(artifact: Artifact, ledger: LedgerReader) -> Comparison:
    infos = {info.source: info for info in ledger.sources()}
    differences = []
    for mark in artifact["marks"]:
        info = infos.get(Source(mark["producer_id"], mark["partition"]))
        where = f"{mark.get('topic')}:{mark['partition']}"
        if info is None or info.topic != mark.get("topic"):
            differences.append(f"the ledger has no source {where}")
        elif info.mark.offset < mark["offset"]:
            differences.append(f"{where} is at {info.mark.offset}, before {mark['offset']}")
        elif (info.mark.stream_time or 0) < (mark.get("stream_time") or 0):
            differences.append(f"{where} is at an earlier stream time than when it was closed")
    return Comparison("marks", f"{len(artifact['marks'])} sources", differences)


def _log(artifact: Artifact, log: LogAudit) -> Comparison:
    """Compare how many admissions lie on each partition, and from where to where."""
    now = dict(log.stretches)
    differences = []
    for entry in artifact["log"]:
        place = Place(entry["topic"], entry["topic_id"], entry["partition"])
        found = now.pop(place, None)
        if found is None or (found.first, found.admissions) != (entry["first"], entry["admissions"]):  # fmt: skip
            differences.append(f"{_named(place)} holds other admissions than at the closing")
    differences += [f"{_named(place)} was not written to by the closing" for place in now]
    return Comparison("partitions written", f"{len(artifact['log'])} partitions", differences)


def _attempts(run_id: str, artifact: Artifact, ledger: LedgerReader) -> Comparison:
    """Compare the tries at closing that the ledger keeps with those that were signed, and the last with the closing."""
    attempts = ledger.attempts(run_id)
    now, differences = attempt_entries(attempts), []
    if now != artifact["attempts"]:
        differences.append("the ledger keeps other tries at closing than at the closing")
    last = next((each for each in reversed(attempts) if each.closed), None)
    said = orjson.loads(last.document) if last else {}
    expected = {"waived": artifact["waived"], "gate": artifact["gate"]}
    if (
        last is None
        or (last.at, last.author) != (artifact["closed_at"], artifact["author"])
        or said != expected
    ):
        differences.append("the try that closed the run is not the closing")
    return Comparison("tries at closing", f"{len(now)} before it", differences)


def _named(place: Place) -> str:
    return f"{place.topic}:{place.partition}"


def _listed(artifact: Artifact, audit: RunAudit, notes: list[str]) -> Comparison:
    """Compare the ledger's list of files with the artifact's."""
    closed = {entry["path"]: entry for entry in artifact["evidence"]}
    now = {file.path: file_entry(file) for file in audit.files.files}
    differences = [f"{path} is no longer listed" for path in sorted(closed.keys() - now.keys())]
    for path, entry in now.items():
        if path not in closed:
            if path not in audit.files.later:
                differences.append(f"{path} was added for what was decided before the closing")
            continue
        said = closed[path]
        if any(entry[name] != said.get(name) for name in ("kind", "rows", "digest")):
            differences.append(f"{path} is listed with other rows than at the closing")
        elif entry["checksum"] != said.get("checksum"):
            notes.append(f"{path} was written again since the closing, with the same rows")
    return Comparison("files at the closing", f"{len(closed)} files", differences)


def _criterion(check: Check, *, closed: bool) -> Comparison:
    differences = [
        f"{blocker.count} {blocker.what}" if blocker.count > 1 else blocker.what
        for blocker in check.blockers
        if closed or blocker.kind in _WRONG_EVEN_WHILE_OPEN
    ]
    return Comparison(str(check.criterion), check.evidence, differences)


def _additions(audit: RunAudit) -> Comparison:
    unknown = [path for path in audit.leftovers if not being_written(path, audit.pending)]
    listed = len(audit.files.files)
    differences = [f"{path} is listed nowhere" for path in [*unknown, *audit.foreign]]
    return Comparison("files that are listed nowhere", f"{listed} files listed", differences)

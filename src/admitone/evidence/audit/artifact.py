"""The closing artifact: what a run was when it was closed, from the stores (CLS-3)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict

import orjson
from typing_extensions import TypedDict

from admitone.core.closure import Gate, GateDocument
from admitone.core.decisions import RULES_VERSION
from admitone.evidence.audit.run_audit import RunAudit
from admitone.ledger.books import RunBooks, books
from admitone.ledger.model import Attempt, EvidenceFile, SourceInfo
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings

ARTIFACT_VERSION = 2


class MarkEntry(TypedDict):
    """How far a source partition was decided."""

    producer_id: int
    partition: int
    topic: str
    offset: int
    stream_time: int | None


class FileEntry(TypedDict):
    """A file of evidence."""

    path: str
    kind: str
    rows: int
    digest: str
    checksum: str


class TopicEntry(TypedDict):
    """Where events went, by the map."""

    family: str
    topic: str
    event_types: list[str]
    partitions: int
    replication: int
    retention_ms: int | None
    cleanup_policy: str
    key_fields: list[str]
    required: bool


class Parameters(TypedDict):
    """Under which rules a run was decided."""

    rules: int
    in_force: list[str]
    """The hashes of all rules that its blocks were decided under."""
    retention_ms: int
    future_tolerance_ms: int
    max_event_bytes: int
    archive: bool
    topics: list[TopicEntry]


class AttemptEntry(TypedDict):
    """A try at closing the run before this one, and the hash over what its gate said."""

    at: int
    author: str
    gate: str


class LogEntry(TypedDict):
    """What of a partition was read: from the run's first place there to an offset, and what was gone of it."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int
    admissions: int
    gone: int


class Artifact(TypedDict):
    """What a run was when it was closed; stored as canonical JSON."""

    version: int
    run_id: str
    closed_at: int
    author: str
    attempts: list[AttemptEntry]
    books: RunBooks
    marks: list[MarkEntry]
    merkle_root: str
    receipts: int
    leaf: int
    log: list[LogEntry]
    evidence: list[FileEntry]
    parameters: Parameters
    waived: list[str]
    gate: GateDocument


def make_artifact(
    audit: RunAudit,
    gate: Gate,
    ledger: LedgerReader,
    settings: Settings,
    waived: Collection[str],
    closed_at: int,
    author: str,
) -> Artifact:
    """Return the artifact of a run that is about to be closed; to be asked in the audit's own snapshot."""
    (account,) = books(ledger, gate.run_id)["runs"]
    return {
        "version": ARTIFACT_VERSION,
        "run_id": gate.run_id,
        "closed_at": closed_at,
        "author": author,
        "attempts": attempt_entries(ledger.attempts(gate.run_id)),
        "books": account,
        "marks": [_mark(info) for info in ledger.sources()],
        "merkle_root": audit.files.tree.root().hex(),
        "receipts": len(audit.files.tree),
        "leaf": audit.files.tree.leaf,
        "log": _log(audit),
        "evidence": [file_entry(file) for file in audit.files.files],
        "parameters": _parameters(settings, audit),
        "waived": sorted(waived),
        "gate": gate.document(),
    }


def attempt_entries(attempts: Sequence[Attempt]) -> list[AttemptEntry]:
    """Return the tries at closing a run that the gate refused, as an artifact lists them."""
    return [
        {
            "at": attempt.at,
            "author": attempt.author,
            "gate": hashlib.sha256(attempt.document.encode()).hexdigest(),
        }
        for attempt in attempts
        if not attempt.closed
    ]


def to_bytes(artifact: Artifact) -> bytes:
    """Return an artifact as canonical JSON: sorted keys, no white space."""
    canonical = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(artifact, default=asdict, option=canonical)


def file_entry(file: EvidenceFile) -> FileEntry:
    """Return an evidence file as the artifact lists it."""
    return {
        "path": file.path,
        "kind": file.kind,
        "rows": file.rows,
        "digest": file.digest.hex(),
        "checksum": file.checksum.hex(),
    }


def _log(audit: RunAudit) -> list[LogEntry]:
    stretches = audit.log.stretches if audit.log is not None else {}
    return [
        {
            "topic": place.topic,
            "topic_id": place.topic_id,
            "partition": place.partition,
            "first": stretch.first,
            "last": stretch.last,
            "admissions": stretch.admissions,
            "gone": stretch.gone,
        }
        for place, stretch in sorted(stretches.items())
    ]


def _mark(info: SourceInfo) -> MarkEntry:
    return {
        "producer_id": info.source.producer_id,
        "partition": info.source.partition,
        "topic": info.topic,
        "offset": info.mark.offset,
        "stream_time": info.mark.stream_time,
    }


def _parameters(settings: Settings, audit: RunAudit) -> Parameters:
    return {
        "rules": RULES_VERSION,
        "in_force": sorted(each.hex() for each in audit.decisions.rules),
        "retention_ms": settings.dedup.retention,
        "future_tolerance_ms": settings.pipeline.future_tolerance,
        "max_event_bytes": settings.pipeline.max_event_bytes,
        "archive": settings.evidence.archive,
        "topics": [
            {
                "family": entry.family,
                "topic": entry.topic,
                "event_types": list(entry.event_types),
                "partitions": entry.partitions,
                "replication": entry.replication,
                "retention_ms": entry.retention,
                "cleanup_policy": entry.cleanup_policy,
                "key_fields": list(entry.key_fields),
                "required": entry.required,
            }
            for entry in settings.topics
        ],
    }

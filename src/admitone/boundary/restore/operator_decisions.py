"""What operators decided since the ledger was copied, as the evidence store still says.

Only what they gave up matters here: it must never be published. Evidence that cannot be read says nothing, and what it
may have said is left to the operator like everything else that is not on the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from admitone.boundary.restore.log_contents import Published
from admitone.core.decisions import CODE_OF_VERDICT, Action, Verdict
from admitone.core.errors import NotFound
from admitone.evidence.audit.scope import marks_of
from admitone.evidence.evidence_file import CLOSURE, from_parquet
from admitone.evidence.evidence_rows import RECEIPTS, RESOLUTIONS, SCHEMAS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.set_aside import every_file
from admitone.ledger.model import NOTHING_DECIDED, Filter, Source
from admitone.ledger.port import LedgerReader

Marks = Mapping[Source, int]
_DOUBTFUL: Final = (
    (RECEIPTS, "verdict", str(Verdict.AMBIGUOUS)),
    (RESOLUTIONS, "action", str(Action.RETRACTED)),
)
"""Which rows of evidence speak of what is not on the log although it was to be published."""


class GivenUp(NamedTuple):
    """Who gave something up, when and why."""

    at: int
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorDecisions:
    """Identities that were given up, runs that were closed, and up to where both matter."""

    retracted: Mapping[bytes, GivenUp]
    closed: Mapping[str, Marks]
    """How far each source was decided when a run was closed."""
    doubtful: Marks
    """The last delivery of each source that was given up, or whose publish got no answer."""

    @classmethod
    def read(
        cls, evidence: EvidenceStore, ledger: LedgerReader, found: Mapping[Source, Published]
    ) -> OperatorDecisions:
        """Read the evidence that the ledger does not know: it was written after the ledger was copied.

        A closing that left its file and did not finish is recognised by what was admitted to the run behind it.
        """
        listed = {file.path for file in ledger.evidence_files()}
        retracted: dict[bytes, GivenUp] = {}
        closings: dict[str, tuple[int, Marks]] = {}
        doubtful: dict[Source, int] = {}
        for path in every_file(evidence):
            if path in listed:
                continue
            if path.rpartition("/")[2].startswith(CLOSURE):
                closings.update(_closing(evidence, path, closings))
            for kind, column, value in _DOUBTFUL:
                rows = _rows(evidence, path, kind)
                rows = rows.filter(pc.equal(rows[column], value))
                _note_last(doubtful, rows)
                if kind == RESOLUTIONS:
                    retracted.update(_given_up(rows))
        runs = ledger.runs()
        closed = {
            run: marks
            for run, (_, marks) in closings.items()
            if runs.get(run) != "CLOSED"
            and not _went_on(run, marks, found)
            and not _was_open(run, marks, ledger)
        }
        return cls(retracted, closed, doubtful)

    def by_identity(self, identities: list[bytes]) -> list[GivenUp | None]:
        """Return, for each identity, who gave it up."""
        return [self.retracted.get(identity) for identity in identities]


def receipts(evidence: EvidenceStore) -> Iterator[pa.Table]:
    """Yield every file of receipts, also those that the ledger does not know of."""
    for path in every_file(evidence):
        if f"/{RECEIPTS}/" in path:
            yield from_parquet(evidence.read(path), RECEIPTS)


def _rows(evidence: EvidenceStore, path: str, kind: str) -> pa.Table:
    """Return the rows of a file of a kind; none of another kind's, or of one that cannot be read."""
    if f"/{kind}/" in path:
        with suppress(NotFound, ValueError, KeyError, OSError, pa.ArrowException):
            return from_parquet(evidence.read(path), kind)
    return SCHEMAS[kind].empty_table()


def _note_last(doubtful: dict[Source, int], rows: pa.Table) -> None:
    columns = (rows[f"source_{name}"].to_pylist() for name in ("producer", "partition", "offset"))
    for producer, partition, offset in zip(*columns, strict=True):
        source = Source(producer, partition)
        doubtful[source] = max(offset, doubtful.get(source, NOTHING_DECIDED))


def _given_up(rows: pa.Table) -> Iterator[tuple[bytes, GivenUp]]:
    for row in rows.select(["identity", "at", "author", "explanation"]).to_pylist():
        yield row["identity"], GivenUp(row["at"], row["author"], row["explanation"])


def _closing(
    evidence: EvidenceStore, path: str, known: Mapping[str, tuple[int, Marks]]
) -> dict[str, tuple[int, Marks]]:
    """Return the run that a closing artifact is of, unless a later one is known."""
    try:
        data = evidence.read(path)
        artifact = orjson.loads(data)
        run, closed_at = str(artifact["run_id"]), int(artifact["closed_at"])
    except (NotFound, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return {}
    marks = marks_of(data)
    if marks is None or (run in known and known[run][0] >= closed_at):
        return {}
    return {run: (closed_at, marks)}


def _went_on(run: str, marks: Marks, found: Mapping[Source, Published]) -> bool:
    """Tell whether the log holds what was admitted to a run behind these marks."""
    return any(
        pc.any(
            pc.equal(
                published.rows["run"].filter(
                    pa.array(published.offsets > marks.get(source, NOTHING_DECIDED))
                ),
                run.encode(),
            )
        ).as_py()
        for source, published in found.items()
    )


def _was_open(run: str, marks: Marks, ledger: LedgerReader) -> bool:
    """Tell whether the ledger knows of an admission to a run behind these marks."""
    return any(
        block.last_offset > marks.get(block.source, NOTHING_DECIDED)
        and pc.any(
            pc.and_(
                pc.and_(
                    pc.equal(facts["run"].cast(pa.string()), run),
                    pc.greater(facts["offset"], marks.get(block.source, NOTHING_DECIDED)),
                ),
                pc.equal(verdicts["verdict"], CODE_OF_VERDICT[Verdict.ADMITTED]),
            )
        ).as_py()
        for block, facts, verdicts, _ in ledger.decided(
            Filter(run_id=run, verdict=Verdict.ADMITTED)
        )
    )

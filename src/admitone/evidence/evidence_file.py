"""An evidence file: its name, its bytes, its rows.

    runs/<run>/<kind>/<first block>-<hash of all blocks>.parquet
    runs/<run>/<kind>/r<first resolution>-<hash of all resolutions>.parquet
    runs/<run>/closure.json    the artifact of its closing
    runs/<run>/seal.json       what was signed of it

A file's name says what it was made from, so writing it again after a crash replaces it by the same rows, and two
writers with other groups never write the same file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from admitone.core.errors import IntegrityError, NotFound
from admitone.evidence.evidence_rows import ADDED_COLUMNS, SCHEMAS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.set_aside import write_beside
from admitone.ledger.columns import logical_digest
from admitone.ledger.model import EvidenceFile

CLOSURE, SEAL = "closure.json", "seal.json"
_LONGEST_NAME = 160
_REPEATING = {
    "event_class", "verdict", "reason", "source_producer", "source_partition", "bus_topic",
    "bus_partition", "offset_kind", "published_at", "decided_at", "append_time", "rules", "block",
    "action", "at", "author", "explanation", "cause", "resolution",
}  # fmt: skip
_SOUGHT = {"block", "ordinal", "source_partition", "source_offset"}
_OURS = re.compile(rf"(?:{'|'.join(SCHEMAS)})/r?\d{{12,}}-[0-9a-f]{{16}}\.parquet")


def run_folder(run_id: str) -> str:
    """Return the prefix of a run, safe for any run id; a long one is shortened and told apart by its hash."""
    quoted = quote(run_id, safe="").replace(".", "%2E")
    if len(quoted) > _LONGEST_NAME:
        # Quoting never puts two percent signs together, so this is nobody else's folder.
        quoted = f"{quoted[: _LONGEST_NAME // 2]}%%{hashlib.sha256(run_id.encode()).hexdigest()}"
    return f"runs/{quoted}"


def closure_path(run_id: str) -> str:
    """Return where a run's closing artifact lies."""
    return f"{run_folder(run_id)}/{CLOSURE}"


def seal_path(run_id: str) -> str:
    """Return where the signed statement of a run's closing lies."""
    return f"{run_folder(run_id)}/{SEAL}"


def is_ours(run_id: str, path: str) -> bool:
    """Tell whether a file of a run's folder is named as a writer would name it."""
    return _OURS.fullmatch(path.removeprefix(f"{run_folder(run_id)}/")) is not None


def path_of(run_id: str, kind: str, numbers: Sequence[int], *, resolutions: bool = False) -> str:
    """Return the path of a file made from these blocks, or from these resolutions."""
    letter = "r" if resolutions else ""
    members = f"{letter}{','.join(map(str, numbers))}"
    digest = hashlib.sha256(members.encode()).hexdigest()[:16]
    return f"{run_folder(run_id)}/{kind}/{letter}{numbers[0]:012d}-{digest}.parquet"


def put_file(
    store: EvidenceStore, path: str, kind: str, run_id: str, rows: pa.Table
) -> EvidenceFile:
    """Write rows under a path and return what the ledger should know of the file.

    A ledger that was restored gives numbers out again, so another file may be there, of what it does not know.
    """
    data = to_parquet(rows)
    write_beside(store, path, data)
    checksum = hashlib.sha256(data).digest()
    return EvidenceFile(path, kind, run_id, rows.num_rows, logical_digest(rows), checksum)


def read_file(store: EvidenceStore, file: EvidenceFile) -> pa.Table:
    """Return the rows of an evidence file, once its bytes are proved to be those that were written."""
    data = written_bytes(store, file)
    if isinstance(data, str):
        raise IntegrityError(
            f"Evidence file {file.path} {data}.",
            f"admitone verify {file.run_id} --repair writes it again where that is possible",
        )
    return from_parquet(data, file.kind)


def written_bytes(store: EvidenceStore, file: EvidenceFile) -> bytes | str:
    """Return the bytes of a file if they are those that were written, or else what is wrong with it."""
    try:
        data = store.read(file.path)
    except NotFound:
        return "is missing"
    return data if hashlib.sha256(data).digest() == file.checksum else "was changed"


def to_parquet(rows: pa.Table) -> bytes:
    """Return rows as the bytes of a file; the same rows give the same bytes."""
    names = rows.column_names
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.combine_chunks(),
        sink,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in names if name in _REPEATING],
        write_statistics=[name for name in names if name in _SOUGHT],
    )
    return bytes(sink.getvalue())


def from_parquet(data: bytes, kind: str) -> pa.Table:
    """Return the rows that a file's bytes hold; those of an older version lack the columns that were added since."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        rows = file.read()
    added = ADDED_COLUMNS.get(kind, ())
    missing = [name for name in added if name not in rows.column_names]
    wanted = [field for field in SCHEMAS[kind] if field.name not in missing]
    return rows.cast(pa.schema(wanted))

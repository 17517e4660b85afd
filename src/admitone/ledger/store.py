"""What a database must offer to hold a ledger: the part in which the two differ.

Everything else is written once, above them, in PostgreSQL's words: `%s` for a value, `= ANY(%s)` for a list of
numbers, `FOR UPDATE` and `FOR SHARE` for rows that must not change until the transaction ends. SQLite, whose write lock
stands for all of these, says them in its own words. Twins: who knows `sqlite/rows.py` knows `postgres/rows.py`.

Every transaction takes its locks in one order: the ownership row of the source, the rows of the runs, the store's
pointer, blocks from the oldest to the youngest, keys. What must not change between two statements is locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from admitone.core.segment_times import Segment
from admitone.ledger.claims import Deliveries, Holder
from admitone.ledger.model import Block

T = TypeVar("T")
Row = tuple[Any, ...]
Condition = tuple[str, list[object]]
"""A condition on a block's row, and the values in it."""


class RunState(NamedTuple):
    """Whether a run takes deliveries."""

    is_closed: bool
    was_closed: bool
    """It was, when the ledger was restored from an older copy: it is to be closed again."""


class KeyClaim(NamedTuple):
    """The deliveries of a block whose keys are claimed, and where their store stands."""

    store: str
    opened: Segment
    closed: tuple[Segment, ...]
    deliveries: Deliveries
    ordinals: np.ndarray
    block_id: int
    decides: Callable[[int, Holder], bool]
    """Whether a held identity leaves the delivery with this ordinal no choice."""


class Document(NamedTuple):
    """A value that is stored as JSON."""

    value: Any


class Rows(Protocol):
    """A transaction or a snapshot: statements, the rows they return, and how this database spells values."""

    run_key: str
    """The column by which a run is found."""
    anomaly_key: str
    """The columns by which a contradiction is found."""
    hash_bytes: str
    """A segment's payload hash as bytes."""
    now_ms: str
    """What time it is by the database's own clock: the one clock that moments of the ledger are taken from."""

    database: str
    """Which database this is: another one after a failover, and where a copy was put in its place."""

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Return every row."""

    def first(self, statement: str, *values: Any) -> Row | None:
        """Return the first row, or None."""

    def stream(self, statement: str, *values: Any) -> Iterator[Row]:
        """Yield rows, however many there are, a few in memory at a time."""

    def change(self, statement: str, *values: Any) -> int:
        """Return how many rows a statement changed."""

    def change_each(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each set of values."""

    def lock(self, name: str) -> None:
        """Let every other transaction that asks for this name wait until this one ends."""

    def roll_back(self) -> None:
        """Undo the transaction; nothing may be done in it afterwards."""

    def text(self, name: str) -> str:
        """Return a name as the database can hold it."""

    def name(self, text: str) -> str:
        """Return the name that was stored."""

    def loaded(self, document: Any) -> Any:
        """Return the value of a stored document or list."""

    def key(self, key: bytes) -> object:
        """Return an identity's key as a segment holds it."""

    def key_of_run(self, run_id: str) -> object:
        """Return the value of the column by which a run is found."""

    def join_runs(self, runs: Iterable[str]) -> dict[str, RunState]:
        """Make a block's runs known and keep them as they are; return their states."""

    def note_runs(self, block_id: int, runs: Iterable[str]) -> None:
        """Remember that a block holds deliveries of these runs, where its row does not say so."""

    def holds_run(self, run_id: str) -> Condition:
        """Return the condition that a block holds deliveries of a run."""

    def may_hold_name(self, number: int) -> Condition:
        """Return the condition that a block's filter may hold a name; `name_filter` has the formula."""

    def insert_columns(
        self, block_id: int, facts: bytes, names: bytes, verdicts: bytes, journal: bytes
    ) -> None:
        """Store the large parts of a block that is claimed."""

    def number_blocks_beyond(self, block_id: int) -> None:
        """Give new blocks numbers beyond this one."""

    def conclude(
        self, block: Block, verdicts: bytes | None, bus: bytes, row: Mapping[str, Any]
    ) -> int:
        """Bring a block in flight to its decided state; return how many blocks changed: one, or none.

        None, too, where its number names another block: a ledger that went back gives numbers again.
        """

    def create_segment(self, table: str) -> None:
        """Create the table of a segment."""


class ReadStore(Protocol):
    """A database with the tables of a ledger, for questions only."""

    def read(self, work: Callable[[Rows], T]) -> T:
        """Ask questions of one consistent state."""

    def snapshot(self) -> AbstractContextManager[Rows]:
        """Read one consistent state, however long it takes; what is read within it sees the same."""

    def close(self) -> None:
        """Close this thread's connection."""


class Store(ReadStore, Protocol):
    """A database with the tables of a ledger."""

    def run(self, work: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run a transaction, again where it must be; commit it unless the work rolled it back.

        What may be done again after a power failure need not wait for the disk.
        """

    def stage(self, deliveries: Deliveries) -> None:
        """Make ready, before a claim's transaction begins, what needs no lock."""

    def claim_keys(self, rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead.

        A row found elsewhere decides unless it is absent or expired; then the block takes its place.
        """

    def drop(self, store: str, segment: Segment) -> bool:
        """Drop a segment that was given up; False where a reader still needs it: the next time will do."""

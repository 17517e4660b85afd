"""How large it gets: keys, disk, network and memory of a load, in arithmetic that can be checked by hand (OPS-2).

1,000 events/s for 100 days are 8,640,000,000 events; in half the retention, a segment's 50 days, 4,320,000,000. A
segment is dropped when the last key it can hold has expired, so up to three are live: 150 days. Only the first event
of a key is stored. Every byte that comes in is moved (replication + standbys + readers) times: from the producer,
to replication - 1 followers, to every standby, to every reader.

What a key, a delivery and an admission take was measured, not assumed: the constants are those that
`python -m benchmarks.bytes_per_key` fits to its figures (benchmarks/bytes_per_key.json); a test keeps both equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from admitone.core.segment_times import interval_of
from admitone.core.windows import DAY_MS

SQLITE, POSTGRESQL = "sqlite", "postgresql"


class Cost(NamedTuple):
    """What a ledger takes, in bytes: for a key and its way through the index, and for a block's columns."""

    key: float
    key_index: float
    column_block: float
    column_delivery: float
    column_id_byte: float


COSTS: Final = {
    SQLITE: Cost(56.10, 57.12, 5_135, 77.22, 0.4551),
    POSTGRESQL: Cost(125.47, 42.30, 6_708, 79.54, 0.4933),
}
RECEIPT: Final = 123.0
ARCHIVE_SHARE: Final = 0.2023
JOURNAL_SHARE: Final = 0.1827
"""What compression leaves of an envelope in the archive, of a delivery in the journal; generated traffic packs well."""
ADMITTED_RECORD: Final = 273.3
"""Key and headers of an admitted record."""
MEMORY_BASE_MB: Final = 1_560
MEMORY_MB_PER_1000: Final = 6.281
"""Of the pipeline's processes: at rest, and for every 1,000 deliveries in a batch."""


class Measured(NamedTuple):
    """What the model is held against: so many blocks of so many deliveries took so many bytes."""

    what: str
    store: str
    blocks: int
    block: int
    id_bytes: int
    bytes: int


KEYS, COLUMNS = "keys", "columns"
MEASURED: Final = (
    Measured(KEYS, SQLITE, 500, 1_000, 0, 28_561_408),
    Measured(KEYS, SQLITE, 4, 50_000, 0, 11_083_776),
    Measured(KEYS, SQLITE, 20, 50_000, 0, 55_865_344),
    Measured(KEYS, SQLITE, 40, 50_000, 0, 111_980_544),
    Measured(KEYS, SQLITE, 100, 50_000, 0, 280_780_800),
    Measured(KEYS, POSTGRESQL, 500, 1_000, 0, 61_956_096),
    Measured(KEYS, POSTGRESQL, 4, 50_000, 0, 25_116_672),
    Measured(KEYS, POSTGRESQL, 20, 50_000, 0, 126_803_968),
    Measured(KEYS, POSTGRESQL, 40, 50_000, 0, 253_181_952),
    Measured(KEYS, POSTGRESQL, 100, 50_000, 0, 622_780_416),
    Measured(COLUMNS, SQLITE, 1_000, 100, 16, 14_258_176),
    Measured(COLUMNS, SQLITE, 1_000, 100, 64, 14_934_016),
    Measured(COLUMNS, SQLITE, 200, 1_000, 16, 18_182_144),
    Measured(COLUMNS, SQLITE, 200, 1_000, 64, 23_097_344),
    Measured(COLUMNS, SQLITE, 30, 10_000, 16, 25_096_192),
    Measured(COLUMNS, SQLITE, 30, 10_000, 64, 32_264_192),
    Measured(COLUMNS, SQLITE, 10, 50_000, 16, 41_308_160),
    Measured(COLUMNS, SQLITE, 10, 50_000, 64, 53_305_344),
    Measured(COLUMNS, POSTGRESQL, 1_000, 100, 16, 15_859_712),
    Measured(COLUMNS, POSTGRESQL, 1_000, 100, 64, 17_268_736),
    Measured(COLUMNS, POSTGRESQL, 200, 1_000, 16, 18_997_248),
    Measured(COLUMNS, POSTGRESQL, 200, 1_000, 64, 23_961_600),
    Measured(COLUMNS, POSTGRESQL, 30, 10_000, 16, 26_279_936),
    Measured(COLUMNS, POSTGRESQL, 30, 10_000, 64, 33_783_808),
    Measured(COLUMNS, POSTGRESQL, 10, 50_000, 16, 43_081_728),
    Measured(COLUMNS, POSTGRESQL, 10, 50_000, 64, 55_508_992),
)

_YEARS_MS = 36_525 * DAY_MS
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "rate": (0.001, 1_000_000_000),
    "retention_ms": (1, _YEARS_MS),
    "duplicates": (0, 0.999_999),
    "key_bytes": (1, 65_536),
    "value_bytes": (1, 100_000_000),
    "replication": (1, 100),
    "standbys": (0, 100),
    "readers": (0, 1_000),
    "partitions": (1, 100_000),
    "log_retention_ms": (1, _YEARS_MS),
    "journal_retention_ms": (1, _YEARS_MS),
    "archive_share": (0, 2),
    "trigger_ms": (1, DAY_MS),
}
_TRIGGERS_MS = (500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
_FIXED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a pipeline; refused where it makes no sense."""

    rate: float = 1_000
    retention_ms: int = 100 * DAY_MS
    duplicates: float = 0.0
    key_bytes: int = 36
    value_bytes: int = 475
    replication: int = 1
    standbys: int = 0
    readers: int = 1
    partitions: int = 4
    log_retention_ms: int = 7 * DAY_MS
    journal_retention_ms: int = DAY_MS
    archive_share: float = ARCHIVE_SHARE
    store: str = SQLITE
    trigger_ms: int | None = None

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _LIMITS.items():
            value = getattr(self, name)
            # `not a <= x <= b` also rejects NaN.
            if value is not None and not lowest <= value <= highest:
                raise ValueError(f"{name}: expected {lowest:,} to {highest:,}, got {value:,}")
        if self.store not in COSTS:
            raise ValueError(f"store: expected {' or '.join(COSTS)}, got {self.store!r}")


PROFILES: Final = {
    name: Load(
        duplicates=duplicates,
        key_bytes=100,
        value_bytes=200,
        replication=3,
        standbys=2,
        store=POSTGRESQL,
    )
    for name, duplicates in (("repeating", 0.95), ("unique", 0.0))
}
"""1,000 events/s for 100 days: with 95 % duplicates 432 million keys, with none 8.64 billion."""


@dataclass(frozen=True, slots=True)
class Events:
    """Deliveries, whatever becomes of them."""

    per_day: int
    in_window: int


@dataclass(frozen=True, slots=True)
class Keys:
    """What is remembered: the first delivery of each key."""

    per_day: int
    in_window: int
    in_segment: int
    at_peak: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Slices of stream time that expire whole."""

    interval_ms: int
    live_at_peak: int
    span_ms: int


@dataclass(frozen=True, slots=True)
class LedgerBytes:
    """Keys go with their segment; a block's columns are kept for good, its originals for a day."""

    keys: int
    columns_per_day: int
    columns: int
    journal: int
    total: int
    with_standbys: int


@dataclass(frozen=True, slots=True)
class EvidenceBytes:
    """Kept for good; without what is quarantined."""

    receipts_per_day: int
    receipts: int
    archive_per_day: int
    archive: int


@dataclass(frozen=True, slots=True)
class BrokerBytes:
    """All replicas of both logs, before compression."""

    raw: int
    admitted: int
    total: int


@dataclass(frozen=True, slots=True)
class BytesPerSecond:
    """On the network, before compression."""

    ingest: int
    copies: int
    raw: int
    admitted: int
    ledger_to_standbys: int
    total: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the pipeline's processes; and the ledger's keys that should stay in memory, or else be read from disk."""

    pipeline: int
    key_index: int
    reads_per_second: int


@dataclass(frozen=True, slots=True)
class Trigger:
    """How often a batch starts, and how many deliveries a block has then."""

    recommended_ms: int
    used_ms: int
    block: int


@dataclass(frozen=True, slots=True)
class ModelError:
    """How far the model is from what was measured: the lowest and the highest error, as shares."""

    what: str
    store: str
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Model:
    """How the model was made."""

    measured_by: str
    errors: list[ModelError]


@dataclass(frozen=True, slots=True)
class Size:
    """What a load needs; also the document that says so."""

    load: Load
    events: Events
    keys: Keys
    segments: Segments
    ledger: LedgerBytes
    evidence: EvidenceBytes
    broker: BrokerBytes
    network: BytesPerSecond
    memory: Memory
    trigger: Trigger
    model: Model


def size_of(load: Load) -> Size:
    """Return what a load needs."""
    cost = COSTS[load.store]
    days = load.retention_ms / DAY_MS
    new_rate = load.rate * (1 - load.duplicates)
    interval = interval_of(load.retention_ms)
    span = load.retention_ms + interval
    live = -(-(load.retention_ms - 1) // interval) + 1

    recommended = recommended_trigger_ms(load)
    trigger = load.trigger_ms or recommended
    blocks_per_second = min(load.rate, load.partitions * 1000 / trigger)
    columns = column_bytes(cost, blocks_per_second * 86_400, load.rate * 86_400, load.key_bytes)
    ledger_keys = _events(new_rate, span) * cost.key
    journal = _events(load.rate, load.journal_retention_ms) * load.value_bytes * JOURNAL_SHARE
    ledger = ledger_keys + columns * days + journal

    receipts = new_rate * 86_400 * RECEIPT
    archive = new_rate * 86_400 * load.value_bytes * load.archive_share

    ingest = load.rate * (load.key_bytes + load.value_bytes)
    admitted = new_rate * (load.value_bytes + ADMITTED_RECORD)
    on_disk = load.replication * load.log_retention_ms / 1000
    copies = load.replication + load.standbys + load.readers
    to_standbys = load.standbys * (new_rate * cost.key + columns / 86_400)
    return Size(
        load,
        Events(_events(load.rate, DAY_MS), _events(load.rate, load.retention_ms)),
        Keys(
            _events(new_rate, DAY_MS),
            _events(new_rate, load.retention_ms),
            _events(new_rate, interval),
            _events(new_rate, span),
        ),
        Segments(interval, live, span),
        LedgerBytes(
            round(ledger_keys),
            round(columns),
            round(columns * days),
            round(journal),
            round(ledger),
            round(ledger * (1 + load.standbys)),
        ),
        EvidenceBytes(*map(round, (receipts, receipts * days, archive, archive * days))),
        BrokerBytes(
            *map(round, (ingest * on_disk, admitted * on_disk, (ingest + admitted) * on_disk))
        ),
        BytesPerSecond(
            round(ingest),
            copies,
            round(ingest * copies),
            round(admitted * copies),
            round(to_standbys),
            round((ingest + admitted) * copies + to_standbys),
        ),
        Memory(
            round((MEMORY_BASE_MB + MEMORY_MB_PER_1000 * load.rate * trigger / 1e6) * 1e6),
            round(_events(new_rate, interval) * cost.key_index),
            math.ceil(load.rate * live),
        ),
        Trigger(recommended, trigger, max(1, round(load.rate / blocks_per_second))),
        Model("python -m benchmarks.bytes_per_key", model_errors()),
    )


def recommended_trigger_ms(load: Load) -> int:
    """Return the shortest usual interval with which at most a tenth of a block's columns is what any block takes."""
    cost = COSTS[load.store]
    one = cost.column_delivery + cost.column_id_byte * load.key_bytes
    block = cost.column_block / (one * _FIXED_SHARE)
    wanted = 1000 * block * load.partitions / load.rate
    return next((ms for ms in _TRIGGERS_MS if ms >= wanted), _TRIGGERS_MS[-1])


def column_bytes(cost: Cost, blocks: float, deliveries: float, id_bytes: float) -> float:
    """Return what the columns of so many blocks take."""
    return blocks * cost.column_block + deliveries * (
        cost.column_delivery + cost.column_id_byte * id_bytes
    )


def model_errors() -> list[ModelError]:
    """Return the lowest and the highest error of the model against what was measured, by what and store."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for row in MEASURED:
        cost, deliveries = COSTS[row.store], row.blocks * row.block
        if row.what == KEYS:
            modelled = deliveries * cost.key
        else:
            modelled = column_bytes(cost, row.blocks, deliveries, row.id_bytes)
        error = modelled / row.bytes - 1
        lowest, highest = found.get((row.what, row.store), (error, error))
        found[row.what, row.store] = min(lowest, error), max(highest, error)
    return [ModelError(*of, *errors) for of, errors in found.items()]


def _events(rate: float, span_ms: int) -> int:
    return round(rate * span_ms / 1000)

"""The tables of the SQLite ledger, oldest version first; a released version never changes.

A block's row is small and changes a few times; what is large is written once, in tables beside it.
"""

from __future__ import annotations

from admitone.ledger.model import ALLOWED_TRANSITIONS

MIGRATIONS = (
    f"""CREATE TABLE generation (pipeline TEXT PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE source (
    producer_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    pipeline TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    door TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    mark INTEGER NOT NULL DEFAULT -1,
    stream_time INTEGER,
    re_read INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (producer_id, partition)
) WITHOUT ROWID;

CREATE TRIGGER marks_never_go_back BEFORE UPDATE OF mark, stream_time, epoch ON source
WHEN NEW.mark < OLD.mark OR NEW.stream_time < OLD.stream_time OR NEW.epoch < OLD.epoch
    OR (NEW.stream_time IS NULL AND OLD.stream_time IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a mark, stream time or epoch cannot go back'); END;

CREATE TABLE run (
    run_id TEXT PRIMARY KEY,
    state TEXT NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'CLOSED')),
    artifact BLOB
) WITHOUT ROWID;

CREATE TRIGGER closed_runs_stay_closed BEFORE UPDATE ON run WHEN OLD.state = 'CLOSED'
BEGIN SELECT RAISE(ABORT, 'a closed run cannot be changed'); END;

CREATE TABLE block (
    block_id INTEGER PRIMARY KEY AUTOINCREMENT,
    producer_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    after_offset INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'IN_FLIGHT',
    rules INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    decided_at INTEGER,
    published_at INTEGER,
    destinations TEXT NOT NULL,
    refused TEXT NOT NULL DEFAULT '[]',
    runs TEXT NOT NULL,
    evidence_hash BLOB,
    evidence_at INTEGER,
    verdict_bits INTEGER NOT NULL DEFAULT 0,
    reason_bits INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0,
    ambiguous INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX block_of_source ON block (producer_id, partition, first_offset);

CREATE INDEX unsettled_block ON block (state) WHERE state IN ('IN_FLIGHT', 'AMBIGUOUS');

CREATE INDEX ambiguous_block ON block (block_id) WHERE ambiguous > 0;

CREATE INDEX block_without_evidence ON block (block_id)
WHERE evidence_at IS NULL AND state IN ('SETTLED', 'AMBIGUOUS', 'RETRACTED');

CREATE TRIGGER blocks_follow_the_table BEFORE UPDATE OF state ON block
WHEN NEW.state <> OLD.state AND NOT ({ALLOWED_TRANSITIONS})
BEGIN SELECT RAISE(ABORT, 'this change of a block''s state is not allowed'); END;

CREATE TRIGGER blocks_are_born_in_flight BEFORE INSERT ON block WHEN NEW.state <> 'IN_FLIGHT'
BEGIN SELECT RAISE(ABORT, 'a block begins in flight'); END;

CREATE TABLE block_run (run_id TEXT NOT NULL, block_id INTEGER NOT NULL, PRIMARY KEY (run_id, block_id))
WITHOUT ROWID;

CREATE TABLE facts (block_id INTEGER PRIMARY KEY, facts BLOB NOT NULL);

CREATE TABLE names (block_id INTEGER PRIMARY KEY, filter BLOB NOT NULL);

CREATE TABLE verdicts (block_id INTEGER PRIMARY KEY, verdicts BLOB NOT NULL, bus BLOB);

CREATE TABLE journal (block_id INTEGER PRIMARY KEY, deliveries BLOB NOT NULL);

CREATE TABLE place (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    block_id INTEGER NOT NULL,
    PRIMARY KEY (topic, partition, first_offset, block_id)
) WITHOUT ROWID;

CREATE TABLE late (
    block_id INTEGER PRIMARY KEY,
    producer_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    first INTEGER NOT NULL,
    records INTEGER NOT NULL,
    destinations TEXT NOT NULL
);

CREATE TABLE resolution (
    resolution_id INTEGER PRIMARY KEY AUTOINCREMENT,
    block_id INTEGER NOT NULL,
    cause INTEGER,
    action TEXT NOT NULL,
    at INTEGER NOT NULL,
    published_at INTEGER,
    author TEXT NOT NULL,
    reason TEXT NOT NULL,
    changes BLOB NOT NULL,
    evidence_at INTEGER
);

CREATE INDEX resolution_of_block ON resolution (block_id);

CREATE INDEX resolution_without_evidence ON resolution (resolution_id) WHERE evidence_at IS NULL;

CREATE TRIGGER resolutions_are_appended
BEFORE UPDATE OF block_id, cause, action, at, published_at, author, reason, changes ON resolution
BEGIN SELECT RAISE(ABORT, 'a resolution cannot be changed'); END;

CREATE TABLE anomaly (
    run_id TEXT NOT NULL,
    identity BLOB NOT NULL,
    payload_hash BLOB NOT NULL,
    block_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'OPEN',
    PRIMARY KEY (run_id, identity, payload_hash)
) WITHOUT ROWID;

CREATE TABLE evidence (
    path TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    run_id TEXT NOT NULL,
    rows INTEGER NOT NULL,
    digest BLOB NOT NULL,
    checksum BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE evidence_block (path TEXT NOT NULL, block_id INTEGER NOT NULL, PRIMARY KEY (path, block_id))
WITHOUT ROWID;

CREATE TABLE evidence_resolution (
    path TEXT NOT NULL,
    resolution_id INTEGER NOT NULL,
    PRIMARY KEY (path, resolution_id)
) WITHOUT ROWID;

CREATE TABLE store (
    name TEXT PRIMARY KEY,
    retention INTEGER NOT NULL,
    open_start INTEGER,
    dropped_before INTEGER
) WITHOUT ROWID;

CREATE TABLE segment (
    store TEXT NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (store, start)
) WITHOUT ROWID""",
    """CREATE TABLE accepted_topic (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    cluster TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL
);

CREATE TRIGGER acceptances_are_appended BEFORE UPDATE ON accepted_topic
BEGIN SELECT RAISE(ABORT, 'an acceptance cannot be changed'); END;

CREATE TRIGGER acceptances_are_kept BEFORE DELETE ON accepted_topic
BEGIN SELECT RAISE(ABORT, 'an acceptance cannot be changed'); END""",
    """CREATE TABLE upstream (
    producer_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    upstream_producer INTEGER NOT NULL,
    upstream_partition INTEGER NOT NULL,
    highest INTEGER NOT NULL,
    last INTEGER NOT NULL,
    replayed INTEGER NOT NULL,
    order_violations INTEGER NOT NULL,
    PRIMARY KEY (producer_id, partition, upstream_producer, upstream_partition)
) WITHOUT ROWID;

CREATE TRIGGER upstream_marks_never_go_back BEFORE UPDATE ON upstream WHEN NEW.highest < OLD.highest
BEGIN SELECT RAISE(ABORT, 'an upstream mark cannot go back'); END""",
    """ALTER TABLE source ADD COLUMN decided INTEGER NOT NULL DEFAULT 0;

ALTER TABLE source ADD COLUMN read_to INTEGER;

UPDATE source SET decided = (
    SELECT coalesce(sum(deliveries), 0) FROM block
    WHERE block.producer_id = source.producer_id AND block.partition = source.partition
    AND state IN ('SETTLED', 'AMBIGUOUS', 'RETRACTED')
)""",
    """ALTER TABLE source ADD COLUMN store TEXT NOT NULL DEFAULT 'admission';

ALTER TABLE source ADD COLUMN cached INTEGER NOT NULL DEFAULT 0;

ALTER TABLE source ADD COLUMN active_at INTEGER;

UPDATE source SET active_at = (
    SELECT max(decided_at) FROM block
    WHERE block.producer_id = source.producer_id AND block.partition = source.partition
) WHERE stream_time IS NOT NULL;

CREATE INDEX retracted_block ON block (state) WHERE state = 'RETRACTED';

CREATE TABLE displaced (
    block_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL,
    key BLOB NOT NULL,
    payload_hash BLOB NOT NULL,
    event_time INTEGER NOT NULL,
    first_block INTEGER NOT NULL,
    first_ordinal INTEGER NOT NULL,
    PRIMARY KEY (block_id, ordinal)
) WITHOUT ROWID""",
    """CREATE TABLE reading_back (
    pipeline TEXT PRIMARY KEY,
    ends TEXT NOT NULL,
    begun_at INTEGER NOT NULL
) WITHOUT ROWID;

ALTER TABLE block ADD COLUMN awaits_operator INTEGER NOT NULL DEFAULT 0;

ALTER TABLE run ADD COLUMN was_closed INTEGER NOT NULL DEFAULT 0""",
    """CREATE TABLE ledger (ledger_id TEXT NOT NULL);

INSERT INTO ledger VALUES (lower(hex(randomblob(16))))""",
    """CREATE TABLE rules (hash BLOB PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;

CREATE TRIGGER rules_are_appended BEFORE UPDATE ON rules
BEGIN SELECT RAISE(ABORT, 'rules cannot be changed'); END;

CREATE TRIGGER rules_are_kept BEFORE DELETE ON rules
BEGIN SELECT RAISE(ABORT, 'rules cannot be changed'); END;

ALTER TABLE block ADD COLUMN rules_hash BLOB;

ALTER TABLE block ADD COLUMN row_hash BLOB;

ALTER TABLE block ADD COLUMN read_back INTEGER NOT NULL DEFAULT 0;

CREATE TABLE closing_attempt (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    author TEXT NOT NULL,
    closed INTEGER NOT NULL,
    document TEXT NOT NULL
);

CREATE INDEX attempt_of_run ON closing_attempt (run_id);

CREATE TRIGGER attempts_are_appended BEFORE UPDATE ON closing_attempt
BEGIN SELECT RAISE(ABORT, 'an attempt to close cannot be changed'); END;

CREATE TRIGGER attempts_are_kept BEFORE DELETE ON closing_attempt
BEGIN SELECT RAISE(ABORT, 'an attempt to close cannot be changed'); END;

CREATE TABLE closing (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    statement BLOB NOT NULL,
    seal TEXT,
    head BLOB NOT NULL UNIQUE
);

CREATE TRIGGER closings_are_appended BEFORE UPDATE ON closing
BEGIN SELECT RAISE(ABORT, 'a closing cannot be changed'); END;

CREATE TRIGGER closings_are_kept BEFORE DELETE ON closing
BEGIN SELECT RAISE(ABORT, 'a closing cannot be changed'); END""",
)

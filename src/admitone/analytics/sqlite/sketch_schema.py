"""The tables of the sketches' file, as forward migrations.

state              `sketch:v1:…`, `space-saving:v1:…` and `meta:v1:…` by key
windows            every stored window; for a minute, whether it is folded
rules              documents of rules, under their hashes
window_rules       the hashes of the rules that each window, open ones too, was counted under
marks              how far each partition of the admitted log is counted
sources            stream time, newest append time and last block of each source partition
spans              the last block that was claimed in each of the newest spans of the ledger's clock
attributes         grouping attributes, and whether all their lists are chosen
attribute_values   the values that have a list of their own
settings           revision, generation, parameters and item rules in force
upstream           how far each source partition was seen in each partition of the admitted log
topics             how many partitions those marks were made for
changes            the revision at which each minute of each list last changed
"""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final = (
    """
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL);

CREATE TABLE windows (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    start_ms INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    folded INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX windows_by_age ON windows (kind, end_ms);

CREATE TABLE marks (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    topic TEXT NOT NULL,
    offset INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    re_read INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;

CREATE TABLE sources (
    producer_id INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    stream_time INTEGER NOT NULL,
    append_time INTEGER NOT NULL,
    PRIMARY KEY (producer_id, partition)
) WITHOUT ROWID;

CREATE TABLE attributes (
    dimension TEXT NOT NULL,
    attribute TEXT NOT NULL,
    closed INTEGER NOT NULL,
    PRIMARY KEY (dimension, attribute)
) WITHOUT ROWID;

CREATE TABLE attribute_values (
    dimension TEXT NOT NULL,
    attribute TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (dimension, attribute, value)
) WITHOUT ROWID;

CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

INSERT INTO settings VALUES ('revision', '0'), ('updated_at', '0')""",
    """
CREATE TABLE upstream (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    source_partition INTEGER NOT NULL,
    highest INTEGER NOT NULL,
    last INTEGER NOT NULL,
    replayed INTEGER NOT NULL,
    order_violations INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, producer_id, source_partition)
) WITHOUT ROWID;

CREATE TABLE topics (topic_id TEXT PRIMARY KEY, partitions INTEGER NOT NULL) WITHOUT ROWID""",
    """
CREATE TABLE changes (
    list TEXT NOT NULL,
    minute INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (list, minute)
) WITHOUT ROWID;

CREATE INDEX changes_by_revision ON changes (revision);

INSERT INTO settings SELECT 'changes_from', value FROM settings WHERE name = 'revision';

INSERT INTO settings VALUES ('generation', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))""",
    """
ALTER TABLE sources ADD COLUMN block INTEGER NOT NULL DEFAULT 0;

CREATE TABLE spans (span INTEGER PRIMARY KEY, last_block INTEGER NOT NULL)""",
    """
CREATE TABLE rules (hash TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;

CREATE TABLE window_rules (
    window TEXT NOT NULL,
    rules TEXT NOT NULL,
    PRIMARY KEY (window, rules)
) WITHOUT ROWID""",
)

"""The tables of the PostgreSQL ledger, oldest version first; a released version never changes.

As in SQLite a block's row is small and changes a few times, and what is large is written once, in tables beside it.
Those blobs are compressed already, or read in part: they are stored out of line as they are (EXTERNAL).

A run is found by a hash of its name, because a name may be longer than an index entry.
"""

from __future__ import annotations

from admitone.ledger.model import ALLOWED_TRANSITIONS

MIGRATIONS = (
    f"""CREATE TABLE generation (pipeline text PRIMARY KEY, generation bigint NOT NULL);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation'; END $$;

CREATE TABLE source (
    producer_id bigint NOT NULL,
    partition integer NOT NULL,
    pipeline text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    door text NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    mark bigint NOT NULL DEFAULT -1,
    stream_time bigint,
    re_read bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (producer_id, partition)
) WITH (fillfactor = 50);

CREATE TRIGGER marks_never_go_back BEFORE UPDATE ON source FOR EACH ROW
WHEN (NEW.mark < OLD.mark OR NEW.epoch < OLD.epoch OR NEW.stream_time < OLD.stream_time
    OR (NEW.stream_time IS NULL AND OLD.stream_time IS NOT NULL))
EXECUTE FUNCTION refuse_change('a mark, stream time or epoch cannot go back');

CREATE TABLE run (
    run_key uuid PRIMARY KEY,
    run_id text NOT NULL,
    state text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'CLOSED')),
    artifact bytea
);

CREATE TRIGGER closed_runs_stay_closed BEFORE UPDATE OR DELETE ON run FOR EACH ROW
WHEN (OLD.state = 'CLOSED') EXECUTE FUNCTION refuse_change('a closed run cannot be changed');

CREATE TABLE block (
    block_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    producer_id bigint NOT NULL,
    partition integer NOT NULL,
    after_offset bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    deliveries integer NOT NULL,
    epoch bigint NOT NULL,
    state text NOT NULL DEFAULT 'IN_FLIGHT',
    rules integer NOT NULL,
    claimed_at bigint NOT NULL,
    decided_at bigint,
    published_at bigint,
    destinations jsonb NOT NULL,
    refused integer[] NOT NULL DEFAULT '{{}}',
    runs jsonb NOT NULL,
    evidence_hash bytea,
    evidence_at bigint,
    verdict_bits bigint NOT NULL DEFAULT 0,
    reason_bits bigint NOT NULL DEFAULT 0,
    quarantined integer NOT NULL DEFAULT 0,
    ambiguous integer NOT NULL DEFAULT 0
);

CREATE INDEX block_of_source ON block (producer_id, partition, first_offset);

CREATE INDEX block_of_run ON block USING gin (runs) WITH (fastupdate = off);

CREATE INDEX block_by_time ON block USING brin (decided_at);

CREATE INDEX block_not_settled ON block (state)
WHERE state IN ('IN_FLIGHT', 'AMBIGUOUS', 'RETRACTED');

CREATE INDEX ambiguous_block ON block (block_id) WHERE ambiguous > 0;

CREATE INDEX block_without_evidence ON block (block_id)
WHERE evidence_at IS NULL AND state IN ('SETTLED', 'AMBIGUOUS', 'RETRACTED');

CREATE TRIGGER blocks_follow_the_table BEFORE UPDATE ON block FOR EACH ROW
WHEN (NEW.state <> OLD.state AND NOT ({ALLOWED_TRANSITIONS}))
EXECUTE FUNCTION refuse_change('this change of a block''s state is not allowed');

CREATE TRIGGER blocks_are_born_in_flight BEFORE INSERT ON block FOR EACH ROW
WHEN (NEW.state <> 'IN_FLIGHT') EXECUTE FUNCTION refuse_change('a block begins in flight');

CREATE TABLE facts (block_id bigint PRIMARY KEY, facts bytea NOT NULL);

ALTER TABLE facts ALTER facts SET STORAGE EXTERNAL;

CREATE TABLE names (block_id bigint PRIMARY KEY, filter bytea NOT NULL);

ALTER TABLE names ALTER filter SET STORAGE EXTERNAL;

CREATE TABLE verdicts (block_id bigint PRIMARY KEY, verdicts bytea NOT NULL, bus bytea);

ALTER TABLE verdicts ALTER verdicts SET STORAGE EXTERNAL, ALTER bus SET STORAGE EXTERNAL;

CREATE TABLE journal (block_id bigint PRIMARY KEY, deliveries bytea NOT NULL);

ALTER TABLE journal ALTER deliveries SET STORAGE EXTERNAL;

CREATE TABLE place (
    topic text NOT NULL,
    partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    block_id bigint NOT NULL,
    PRIMARY KEY (topic, partition, first_offset, block_id)
);

CREATE TABLE late (
    block_id bigint PRIMARY KEY,
    producer_id bigint NOT NULL,
    partition integer NOT NULL,
    first bigint NOT NULL,
    records integer NOT NULL,
    destinations jsonb NOT NULL
);

CREATE INDEX late_of_source ON late (producer_id, partition);

CREATE TABLE resolution (
    resolution_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    block_id bigint NOT NULL,
    cause bigint,
    action text NOT NULL,
    at bigint NOT NULL,
    published_at bigint,
    author text NOT NULL,
    reason text NOT NULL,
    changes bytea NOT NULL,
    evidence_at bigint
);

CREATE INDEX resolution_of_block ON resolution (block_id);

CREATE INDEX resolution_without_evidence ON resolution (resolution_id) WHERE evidence_at IS NULL;

CREATE TRIGGER resolutions_are_appended
BEFORE UPDATE OF block_id, cause, action, at, published_at, author, reason, changes OR DELETE ON resolution
FOR EACH ROW EXECUTE FUNCTION refuse_change('a resolution cannot be changed');

CREATE TRIGGER resolutions_are_kept BEFORE TRUNCATE ON resolution
EXECUTE FUNCTION refuse_change('a resolution cannot be changed');

CREATE TABLE anomaly (
    identity bytea NOT NULL,
    payload_hash bytea NOT NULL,
    run_key uuid NOT NULL,
    block_id bigint NOT NULL,
    ordinal integer NOT NULL,
    state text NOT NULL DEFAULT 'OPEN',
    PRIMARY KEY (identity, payload_hash)
);

CREATE INDEX open_anomaly ON anomaly (run_key) WHERE state = 'OPEN';

CREATE TABLE evidence (
    path text PRIMARY KEY,
    kind text NOT NULL,
    run_id text NOT NULL,
    rows bigint NOT NULL,
    digest bytea NOT NULL,
    checksum bytea NOT NULL
);

CREATE TABLE evidence_block (path text NOT NULL, block_id bigint NOT NULL, PRIMARY KEY (path, block_id));

CREATE TABLE evidence_resolution (
    path text NOT NULL,
    resolution_id bigint NOT NULL,
    PRIMARY KEY (path, resolution_id)
);

CREATE TABLE store (
    name text PRIMARY KEY,
    retention bigint NOT NULL,
    open_start bigint,
    dropped_before bigint
);

CREATE TRIGGER the_forgotten_stays_forgotten BEFORE UPDATE ON store FOR EACH ROW
WHEN (NEW.dropped_before < OLD.dropped_before OR NEW.open_start < OLD.open_start)
EXECUTE FUNCTION refuse_change('a store cannot go back');

CREATE TABLE segment (
    store text NOT NULL,
    start bigint NOT NULL,
    length bigint NOT NULL,
    PRIMARY KEY (store, start)
)""",  # noqa: S608 - made from the table of transitions
    """CREATE TABLE accepted_topic (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    at bigint NOT NULL,
    author text NOT NULL,
    reason text NOT NULL
);

CREATE TRIGGER acceptances_are_appended BEFORE UPDATE OR DELETE ON accepted_topic
FOR EACH ROW EXECUTE FUNCTION refuse_change('an acceptance cannot be changed');

CREATE TRIGGER acceptances_are_kept BEFORE TRUNCATE ON accepted_topic
EXECUTE FUNCTION refuse_change('an acceptance cannot be changed')""",
    """CREATE TABLE upstream (
    producer_id bigint NOT NULL,
    partition integer NOT NULL,
    upstream_producer bigint NOT NULL,
    upstream_partition integer NOT NULL,
    highest bigint NOT NULL,
    last bigint NOT NULL,
    replayed bigint NOT NULL,
    order_violations bigint NOT NULL,
    PRIMARY KEY (producer_id, partition, upstream_producer, upstream_partition)
) WITH (fillfactor = 50);

CREATE TRIGGER upstream_marks_never_go_back BEFORE UPDATE ON upstream FOR EACH ROW
WHEN (NEW.highest < OLD.highest) EXECUTE FUNCTION refuse_change('an upstream mark cannot go back')""",
    """ALTER TABLE source ADD COLUMN decided bigint NOT NULL DEFAULT 0;

ALTER TABLE source ADD COLUMN read_to bigint;

UPDATE source SET decided = (
    SELECT coalesce(sum(deliveries), 0) FROM block
    WHERE block.producer_id = source.producer_id AND block.partition = source.partition
    AND state IN ('SETTLED', 'AMBIGUOUS', 'RETRACTED')
)""",
    """ALTER TABLE source ADD COLUMN store text NOT NULL DEFAULT 'admission';

ALTER TABLE source ADD COLUMN cached bigint NOT NULL DEFAULT 0;

ALTER TABLE source ADD COLUMN active_at bigint;

UPDATE source SET active_at = (
    SELECT max(decided_at) FROM block
    WHERE block.producer_id = source.producer_id AND block.partition = source.partition
) WHERE stream_time IS NOT NULL;

CREATE TABLE displaced (
    block_id bigint NOT NULL,
    ordinal integer NOT NULL,
    start bigint NOT NULL,
    key uuid NOT NULL,
    payload_hash uuid NOT NULL,
    event_time bigint NOT NULL,
    first_block bigint NOT NULL,
    first_ordinal integer NOT NULL,
    PRIMARY KEY (block_id, ordinal)
)""",
    """CREATE TABLE reading_back (
    pipeline text PRIMARY KEY,
    ends jsonb NOT NULL,
    begun_at bigint NOT NULL
);

ALTER TABLE block ADD COLUMN awaits_operator integer NOT NULL DEFAULT 0;

ALTER TABLE run ADD COLUMN was_closed integer NOT NULL DEFAULT 0""",
    """CREATE TABLE ledger (ledger_id text NOT NULL);

INSERT INTO ledger VALUES (replace(gen_random_uuid()::text, '-', ''))""",
    """CREATE TABLE rules (hash bytea PRIMARY KEY, document bytea NOT NULL);

CREATE TRIGGER rules_are_appended BEFORE UPDATE OR DELETE ON rules
FOR EACH ROW EXECUTE FUNCTION refuse_change('rules cannot be changed');

CREATE TRIGGER rules_are_kept BEFORE TRUNCATE ON rules
EXECUTE FUNCTION refuse_change('rules cannot be changed');

ALTER TABLE block ADD COLUMN rules_hash bytea;

ALTER TABLE block ADD COLUMN row_hash bytea;

ALTER TABLE block ADD COLUMN read_back integer NOT NULL DEFAULT 0;

CREATE TABLE closing_attempt (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_key uuid NOT NULL,
    at bigint NOT NULL,
    author text NOT NULL,
    closed integer NOT NULL,
    document text NOT NULL
);

CREATE INDEX attempt_of_run ON closing_attempt (run_key);

CREATE TRIGGER attempts_are_appended BEFORE UPDATE OR DELETE ON closing_attempt
FOR EACH ROW EXECUTE FUNCTION refuse_change('an attempt to close cannot be changed');

CREATE TRIGGER attempts_are_kept BEFORE TRUNCATE ON closing_attempt
EXECUTE FUNCTION refuse_change('an attempt to close cannot be changed');

CREATE TABLE closing (
    number bigint PRIMARY KEY,
    run_key uuid NOT NULL,
    statement bytea NOT NULL,
    seal text,
    head bytea NOT NULL UNIQUE
);

CREATE TRIGGER closings_are_appended BEFORE UPDATE OR DELETE ON closing
FOR EACH ROW EXECUTE FUNCTION refuse_change('a closing cannot be changed');

CREATE TRIGGER closings_are_kept BEFORE TRUNCATE ON closing
EXECUTE FUNCTION refuse_change('a closing cannot be changed')""",
)

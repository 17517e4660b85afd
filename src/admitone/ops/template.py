"""The commented configurations that `init` writes; tests keep the embedded one equal to the defaults."""

TEMPLATE = """\
# admitone: every value below is the default; delete what you do not change.
# Durations are a number and a unit: ms, s, m, h, d, w.
# Any value can come from the environment instead: ADMITONE_PIPELINE__RUN_ID=nightly

[pipeline]
name = "admitone"            # part of every producer id: two pipelines on one log need two names
run_id = "default"           # the run of deliveries that name none
max_block = 100000           # deliveries decided in one ledger transaction
max_event_bytes = 900000     # longer ones are quarantined, PAYLOAD_TOO_LARGE
future_tolerance = "1h"      # an event may be this far ahead of its append time
claim_lease = "60s"          # how long somebody else's unfinished block is waited for
quarantine_limit = 0.5       # stop before more than this share of deliveries goes to quarantine; 1 never stops
quarantine_window = 1000     # judged over at least this many deliveries of a partition

[schemas]
folder = ""                  # JSON Schemas of your own event types, refund.1.0.0.json and so on, beside the package's

[transport]
kind = "folder"
path = "data/log"
raw_topic = "raw"
raw_partitions = 4
create_topics = true         # make the topics of the map at the first start; false: admitone topics create
check_interval = "10s"       # how often the topics are compared with the map
filter_replays = false       # name what an upstream job wrote again by its key, REPLAYED, without decoding it
producers = []               # ids of the upstream producers that are filtered by
strict_keys = false          # quarantine what has no such key, FOREIGN_KEY
max_per_trigger = 400000     # deliveries in one Spark batch, over all partitions

[ledger]
url = "sqlite:data/ledger.db"    # or postgresql://user@host/database; the password from the environment

[evidence]
path = "data/evidence"       # or the URL of an object store: s3://bucket/prefix
archive = true               # keep the admitted envelopes themselves
journal_retention = "1d"     # originals stay in the ledger this long after their evidence is written

[dedup]
retention = "100d"           # how long an identity is remembered
idle_after = "10m"           # a partition that is silent for so long no longer holds segments back
cache = 500000               # settled identities a worker remembers, 52 bytes each; 0 always asks the ledger
source = ""                  # from here on, a dedup pipeline's: the topic it reads; empty: the raw topic
destination = "deduplicated"
late = "deduplicated.late"   # what engine state cannot judge
partitions = 4               # of both topics
replication = 1
topic_retention = "7d"
run_id = "dedup"             # the run its decisions are kept under; keys are remembered across runs
key = "identity"             # identity, field, business (several fields) or content
key_fields = []              # paths such as "payload.orderId"
time_field = ""              # a path such as "payload.madeAt"; empty: the log's own time of the record

[dedup.state]                # engine state on RocksDB, for windows of minutes to hours
memory_mb = 1024             # of all partitions together; 0 caps nothing
write_buffer_share = 0.5     # of that memory; the rest is cache
write_buffer_mb = 128
write_buffers = 4            # of a partition
block_cache_mb = 512         # of a partition, where memory is not capped
compression = "lz4"          # zstd, snappy, none
compact_on_commit = false
changelog = true             # a commit writes what changed, not whole files

[topk]
store = "sqlite:data/analytics.db"
k = 100
width = 1024                 # Count-Min: counters in a row
depth = 5                    # Count-Min: rows
counter_bits = 32            # day and above always use 64
windows = ["1m", "1h", "1d", "1w", "1mo", "all"]
lateness = "10m"             # behind the end of its minute, a record is counted as late
idle_after = "10m"           # a silent partition no longer holds windows open
keep_minutes = "2d"
keep_hours = "35d"
max_values = 20              # lists per grouping attribute, the rest is *other
max_per_trigger = 400000

[results]
kind = "embedded"            # answers come from the store above; "redis" writes them there too
url = "redis://127.0.0.1:6379/0"   # rediss:// is TLS; the password: ADMITONE_RESULTS__PASSWORD, or password_file
interval = "1s"              # at most so often

[results.expire]             # so long after the last change; global stays
minute = "2d"
hour = "35d"
day = "400d"
week = "400d"
month = "1825d"
item = "400d"

[history]
kind = "embedded"            # as long as the store above keeps windows; "postgresql" keeps them longer
url = "postgresql://admitone@127.0.0.1/admitone"   # the password: PGPASSWORD, or all of it in ADMITONE_HISTORY__URL
interval = "5s"              # complete windows, at most so often
open_interval = "1m"         # open ones, marked incomplete
keep_minutes = "14d"
keep_hours = "400d"          # days and above are kept for good, unless keep_days says otherwise

[spark]
master = "local[2,4]"
driver_memory = "2g"
shuffle_partitions = 2
checkpoints = "data/checkpoints"

[service]                    # admitone serve; listening elsewhere needs tokens, which admitone token makes
host = "127.0.0.1"
port = 8600
slots = 1                    # lanes of the synchronous door, each a source partition of its own
max_body = 8000000           # bytes of a request
max_batch = 1000             # events of a request
max_waiting = 10000          # events waiting at the door; more are answered 429
max_page = 1000              # decisions on a page
max_windows = 1500           # windows in an item's history
max_watchers = 100           # of /v1/live
door_timeout = "30s"
answer_timeout = "30s"
evidence_interval = "10s"     # how often evidence of what the door decided is written
log = "errors"               # or "all": a line for every request

# Where admitted events go. An event type has one destination.
[[topics]]
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
partitions = 4
key_fields = ["metadata.partitionKey"]   # the first that is present chooses the partition
record_key = "stream_metadata"   # or "business_key": then the position is in the header `position`
partitioner = "profile"          # or "source": the source partition, modulo the partitions
filter_replays = true            # the analytics counts no record of it twice, whoever wrote it again

# How an event becomes something to count.
[[items]]
event_type = "page_view"
dimension = "url"
item = "url"
item_type = "url"
group_by = ["deviceType", "pageCategory"]

[[items]]
event_type = "product_view"
dimension = "productId"
item = "productId"
item_type = "product"
group_by = ["productCategory", "productBrand"]

[[items]]
event_type = "api_request"
dimension = "apiEndpoint"
item = "endpoint"
item_type = "api"
group_by = ["method", "statusCode", "region"]

[[items]]
event_type = "search"
dimension = "searchQuery"
item = "searchQuery"
item_type = "search"
group_by = ["category", "resultCount"]

[[items]]
event_type = "purchase"
dimension = "purchase"
item = "productId"
item_type = "purchase"
group_by = ["productCategory", "customerType"]
"""

PRODUCTION = """\
# admitone on Kafka and PostgreSQL: change the names, delete what you do not need.
# What is not here has its default; admitone init --profile embedded shows them all.
# No secret belongs into this file: each comes from the environment or from a file that only this user may read.

[pipeline]
name = "admitone"            # part of every producer id: two pipelines on one log need two names

[schemas]
# folder = "schemas"         # merchant_context.1.0.0.json and so on: each event type below that is your own needs one

[transport]
kind = "kafka"
create_topics = false        # admitone topics create makes them
check_interval = "10s"       # how often the topics are compared with what is below
raw_topic = "raw"            # must have message.timestamp.type = LogAppendTime
raw_partitions = 12
raw_replication = 3
raw_retention = "7d"

[transport.kafka]
bootstrap = "kafka-1.internal:9093,kafka-2.internal:9093,kafka-3.internal:9093"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "admitone"
# The password: ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD, or sasl_password_file = "/run/secrets/kafka"
# ssl_ca = "/etc/admitone/ca.pem"      # where the brokers' certificates are not signed by a public authority

[ledger]
url = "postgresql://admitone@db.internal/admitone"   # the password: PGPASSWORD, or all of it in ADMITONE_LEDGER__URL

[evidence]
path = "data/evidence"       # or the URL of an object store: s3://bucket/prefix

[results]
kind = "redis"
url = "rediss://admitone@redis.internal:6379/0"   # the password: ADMITONE_RESULTS__PASSWORD, or password_file

[history]
kind = "postgresql"
url = "postgresql://admitone@db.internal/admitone"   # the password: PGPASSWORD, or all of it in ADMITONE_HISTORY__URL

[spark]
master = "local[2,4]"        # or spark://host:7077

[service]
host = "127.0.0.1"           # elsewhere only with tokens: admitone token NAME --role read|operate|ingest
slots = 2                    # lanes of the synchronous door

# Where admitted events go: one family of events, one topic. The first key field that is present chooses the
# partition, so that what belongs together stays in order. An event type needs a schema to be admitted; those below
# that come without one stand for your own.

[[topics]]                   # traffic: by flow, else by entity
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
key_fields = ["metadata.flowId", "metadata.entityId", "metadata.partitionKey"]
partitions = 12
replication = 3
retention = "7d"
cleanup_policy = "delete"
required = true              # a run without any of these is not closed unless that is waived by name

[[topics]]                   # context: by merchant, else by arrival sequence
family = "context"
topic = "admitted.context"
event_types = ["merchant_context"]
key_fields = ["payload.merchantId", "payload.arrivalSequence"]
partitions = 12
replication = 3
retention = "7d"

[[topics]]                   # control: by what identifies a run
family = "control"
topic = "admitted.control"
event_types = ["run_control"]
key_fields = ["metadata.runId", "payload.controlId"]
partitions = 3
replication = 3
retention = "30d"

[[topics]]                   # decision: by idempotency key, else by the decision it descends from
family = "decision"
topic = "admitted.decision"
event_types = ["decision", "action"]
key_fields = ["payload.idempotencyKey", "payload.decisionId"]
partitions = 12
replication = 3
retention = "30d"
"""

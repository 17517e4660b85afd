"""The commented configuration that `init` writes; a test keeps its values equal to the defaults."""

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

[transport]
kind = "folder"
path = "data/log"
raw_topic = "raw"
raw_partitions = 4
max_per_trigger = 400000     # deliveries in one Spark batch, over all partitions

[ledger]
url = "sqlite:data/ledger.db"    # or postgresql://user@host/database; the password from the environment

[evidence]
path = "data/evidence"       # or the URL of an object store: s3://bucket/prefix
archive = true               # keep the admitted envelopes themselves
journal_retention = "1d"     # originals stay in the ledger this long after their evidence is written

[dedup]
retention = "100d"           # how long an identity is remembered

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

[spark]
master = "local[2,4]"
driver_memory = "2g"
shuffle_partitions = 2
checkpoints = "data/checkpoints"

# Where admitted events go. An event type has one destination.
[[topics]]
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
partitions = 4
key_fields = ["metadata.partitionKey"]   # the first that is present chooses the partition

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

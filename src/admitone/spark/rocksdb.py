"""RocksDB behind Spark's stateful operators: how it is configured, and what a query's progress says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from admitone.settings import StateSettings

_OPERATOR = "dedupeWithinWatermark"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def use_rocksdb(spark: SparkSession, state: StateSettings) -> None:
    """Let queries that are started from now on keep their state in RocksDB, as the settings say."""
    for name, value in state_options(state).items():
        spark.conf.set(name, value)


def state_options(state: StateSettings) -> dict[str, str]:
    """Return the settings under the names Spark has for them."""
    return {
        "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
        f"{_ROCKSDB}.boundedMemoryUsage": _spelled(state.memory_mb > 0),
        **({f"{_ROCKSDB}.maxMemoryUsageMB": str(state.memory_mb)} if state.memory_mb else {}),
        f"{_ROCKSDB}.writeBufferCacheRatio": str(state.write_buffer_share),
        f"{_ROCKSDB}.writeBufferSizeMB": str(state.write_buffer_mb),
        f"{_ROCKSDB}.maxWriteBufferNumber": str(state.write_buffers),
        f"{_ROCKSDB}.blockCacheSizeMB": str(state.block_cache_mb),
        f"{_ROCKSDB}.compression": state.compression,
        f"{_ROCKSDB}.compactOnCommit": _spelled(state.compact_on_commit),
        f"{_ROCKSDB}.changelogCheckpointing.enabled": _spelled(state.changelog),
    }


@dataclass(frozen=True, slots=True)
class StateMetrics:
    """What one batch did to the state, and how large it is afterwards (DED-9)."""

    rows: int
    bytes_in_memory: int
    bytes_on_disk: int
    bytes_copied: int
    rows_added: int
    dropped_duplicates: int
    dropped_late: int
    evicted: int
    eviction_ms: int
    commit_ms: int


def state_metrics(progress: Mapping[str, Any]) -> StateMetrics:
    """Return what a query's progress says about its dedup state; all zero where it has none."""
    operators = [
        operator for operator in progress["stateOperators"] if operator["operatorName"] == _OPERATOR
    ]

    def total(name: str) -> int:
        return sum(operator[name] for operator in operators)

    def custom(name: str) -> int:
        return sum(operator["customMetrics"].get(name, 0) for operator in operators)

    return StateMetrics(
        rows=total("numRowsTotal"),
        bytes_in_memory=total("memoryUsedBytes"),
        bytes_on_disk=custom("rocksdbSstFileSize"),
        bytes_copied=custom("rocksdbBytesCopied"),
        rows_added=total("numRowsUpdated"),
        dropped_duplicates=custom("numDroppedDuplicateRows"),
        dropped_late=total("numRowsDroppedByWatermark"),
        evicted=total("numRowsRemoved"),
        eviction_ms=total("allRemovalsTimeMs"),
        commit_ms=total("commitTimeMs"),
    )


def _spelled(value: bool) -> str:
    return str(value).lower()

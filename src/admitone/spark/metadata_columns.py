"""Stream metadata as Spark columns: the same twenty bytes as `core.wire`, made and read without Python."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from admitone.core.errors import ConfigurationError
from admitone.core.wire import KEY_BYTES, Header

UPSTREAM_BYTES: Final = 12
_SIGN_BIT: Final = bytearray([0x80])


def metadata_key(producer_id: int, partition: str = "partition", offset: str = "offset") -> Column:
    """Return the record key that says where a row was read: a producer's id, its source partition and offset.

    Rows must be written in offset order for each source partition: nothing may repartition or sort them before.
    """
    return F.unhex(
        F.concat(
            F.lit(producer_bytes(producer_id).hex()),
            F.lpad(F.hex(F.col(partition).cast("bigint")), 8, "0"),
            F.lpad(F.hex(F.col(offset).cast("bigint")), 16, "0"),
        )
    )


def producer_bytes(producer_id: int) -> bytes:
    """Return the first bytes of everything that a producer writes."""
    try:
        return producer_id.to_bytes(8, "big", signed=True)
    except (AttributeError, OverflowError):
        raise ConfigurationError(
            f"Expected a producer id, a whole number of 64 bits with sign, got {producer_id!r}.",
            "producer_id(pipeline, stream, cluster, topic_id) makes one",
        ) from None


def position_of(df: DataFrame) -> Column:
    """Return where each row says it comes from: its header `position`, or else its key."""
    if "headers" not in df.columns:
        return F.col("key")
    return F.coalesce(header_of(Header.POSITION, KEY_BYTES), F.col("key"))


def header_of(name: str, size: int) -> Column:
    """Return the last header of a name, where it has the right size."""
    named = F.filter("headers", lambda entry: entry["key"] == name)
    value = F.element_at(F.reverse(F.transform(named, lambda entry: entry["value"])), 1)
    value = F.when(F.size(named) > 0, value)
    return F.when(F.length(value) == size, value)


def is_metadata(position: Column, producers: list[int] | None) -> Column:
    """Tell whether a position is stream metadata of one of these producers; None stands for all."""
    found = (
        (F.length(position) == KEY_BYTES)
        & (F.substring(position, 9, 1) < F.lit(_SIGN_BIT))
        & (F.substring(position, 13, 1) < F.lit(_SIGN_BIT))
    )
    if producers is not None:
        known = [bytearray(producer_bytes(number)) for number in producers]
        found &= F.substring(position, 1, 8).isin(known)
    return F.coalesce(found, F.lit(False))


def upstream_of(position: Column) -> Column:
    """Return the producer id and source partition of a position, as its first bytes."""
    return F.substring(position, 1, UPSTREAM_BYTES)


def source_partition_of(position: Column) -> Column:
    """Return the source partition of a position."""
    return F.conv(F.hex(F.substring(position, 9, 4)), 16, 10).cast("int")


def offset_bytes_of(position: Column) -> Column:
    """Return the source offset of a position; as offsets are not negative, byte order is their order."""
    return F.substring(position, 13, 8)


def long_of(value: Column) -> Column:
    """Return the number that eight big-endian bytes hold."""
    return F.conv(F.hex(value), 16, 10).cast("bigint")

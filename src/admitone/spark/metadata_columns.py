"""Stream metadata as Spark columns: the same twenty bytes as `core.wire`, made and read without Python."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from admitone.core.errors import ConfigurationError
from admitone.core.wire import (
    OFFSET,
    PARTITION,
    POSITION_BYTES,
    PRODUCER,
    UPSTREAM,
    Header,
)

_SIGN_BIT: Final = bytearray([0x80])


def metadata_key(producer_id: int, partition: str = "partition", offset: str = "offset") -> Column:
    """Return the record key that says where a row was read: a producer's id, its source partition and offset.

    Rows must be written in offset order for each source partition: nothing may repartition or sort them before.
    """
    return F.unhex(
        F.concat(
            F.lit(producer_bytes(producer_id).hex()),
            _hex_of(partition, PARTITION),
            _hex_of(offset, OFFSET),
        )
    )


def producer_bytes(producer_id: int) -> bytes:
    """Return the first bytes of everything that a producer writes."""
    try:
        return producer_id.to_bytes(PRODUCER.stop, "big", signed=True)
    except (AttributeError, OverflowError):
        raise ConfigurationError(
            f"Expected a producer id, a whole number of 64 bits with sign, got {producer_id!r}.",
            "producer_id(pipeline, stream, cluster, topic_id) makes one",
        ) from None


def offset_bytes(offset: str) -> Column:
    """Return the eight bytes of a column's source offset."""
    return F.unhex(_hex_of(offset, OFFSET))


def position_of(df: DataFrame) -> Column:
    """Return where each row says it comes from: its header `position`, or else its key."""
    if "headers" not in df.columns:
        return F.col("key")
    return F.coalesce(header_of(Header.POSITION, POSITION_BYTES), F.col("key"))


def header_of(name: str, size: int) -> Column:
    """Return the last header of a name, where it has the right size."""
    named = F.filter("headers", lambda entry: entry["key"] == name)
    value = F.element_at(F.reverse(F.transform(named, lambda entry: entry["value"])), 1)
    value = F.when(F.size(named) > 0, value)
    return F.when(F.length(value) == size, value)


def is_metadata(position: Column, producers: list[int] | None) -> Column:
    """Tell whether a position is stream metadata of one of these producers; None stands for all."""
    found = (
        (F.length(position) == POSITION_BYTES)
        & (_part(position, PARTITION) < F.lit(_SIGN_BIT))
        & (_part(position, OFFSET) < F.lit(_SIGN_BIT))
    )
    if producers is not None:
        known = [bytearray(producer_bytes(number)) for number in producers]
        found &= _part(position, PRODUCER).isin(known)
    return F.coalesce(found, F.lit(False))


def upstream_of(position: Column) -> Column:
    """Return the producer id and source partition of a position, as its first bytes."""
    return _part(position, UPSTREAM)


def source_partition_of(position: Column) -> Column:
    """Return the source partition of a position."""
    return F.conv(F.hex(_part(position, PARTITION)), 16, 10).cast("int")


def offset_bytes_of(position: Column) -> Column:
    """Return the source offset of a position; as offsets are not negative, byte order is their order."""
    return _part(position, OFFSET)


def long_of(value: Column) -> Column:
    """Return the number that eight big-endian bytes hold."""
    return F.conv(F.hex(value), 16, 10).cast("bigint")


def _part(position: Column, part: slice) -> Column:
    return F.substring(position, part.start + 1, part.stop - part.start)


def _hex_of(number: str, part: slice) -> Column:
    digits = 2 * (part.stop - part.start)
    return F.lpad(F.hex(F.col(number).cast("bigint")), digits, "0")

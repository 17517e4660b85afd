"""What goes on beside a query's batches, and how the driver asks after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery


class QueryCompanion:
    """Nothing, unless a query has more to say: whether all is well, how it stands, and what is left to do."""

    def error(self) -> BaseException | None:
        """Return what is wrong, so that nobody has to wait for a next batch to hear of it."""
        return None

    def look(self, query: StreamingQuery) -> None:
        """Note how the query stands, every now and then."""

    def await_last(self, query: StreamingQuery) -> None:
        """Wait until the last batch is told of too: it is on disk a moment before."""

    def close(self) -> None:
        """Finish what was begun; the query has ended."""


def start_query(
    name: str,
    stream: DataFrame,
    work: Callable[[DataFrame, int], None],
    checkpoint: Path,
    trigger: str,
    companion: QueryCompanion,
) -> StreamingQuery:
    """Start a query that does some work with each micro-batch; its companion is `beside` it, and ends with it."""
    writer = stream.writeStream.queryName(name).foreachBatch(work).trigger(processingTime=trigger)
    try:
        query = writer.option("checkpointLocation", checkpoint.as_uri()).start()
    except BaseException:
        companion.close()
        raise
    query.companion = companion
    return query

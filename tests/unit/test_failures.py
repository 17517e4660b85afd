"""What is said about an error that came through Spark; the texts are Spark's and Kafka's own, shortened."""

from __future__ import annotations

import pytest

from admitone.core.errors import (
    AdmitoneError,
    CircuitOpen,
    ConfigurationError,
    IntegrityError,
    ServiceUnreachable,
)
from admitone.spark.failures import explained, told_in_a_line

DATA_LOSS = """\
An error occurred while calling o113.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 1.0: org.apache.spark.sql.kafka010.KafkaIllegalStateException: \
Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [5, 70) for topic partition raw-3
with consumer group spark-kafka-source-618f27c5.
	at org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:94)
Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position is out of range
	... 31 more
"""
OFFSET_CHANGED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Some data may have been lost because they are not \
available in Kafka any more;
topic was processed.
Reason: Partition raw-0 offset was changed from 99 to 4.
This could be either 1) a user error or 2) the kafka topic-partition is deleted and re-created. SQLSTATE: 22000
"""
TIMED_OUT = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: org.apache.kafka.common.errors.TimeoutException: \
Timed out waiting for a node assignment. Call: describeTopics SQLSTATE: XXKST
"""
DENIED = """\
Caused by: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TopicAuthorizationException: \
Not authorized to access topics: [raw]
"""
CODED = """\
  File "worker.py", line 1, in main
admitone.core.errors.CircuitOpen: [CIRCUIT_OPEN] 9 of the last 10 would be quarantined. Try: mend them
Caused by: org.apache.kafka.common.errors.TimeoutException: unrelated
"""
UNKNOWN = """\
An error occurred while calling o1.start.
: org.apache.spark.SparkException: outer
Caused by: java.io.IOException: No space left on device
"""

IN_A_WORKER = """\
: org.apache.spark.SparkException: Job aborted: Lost task 0.3: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "worker.py", line 3232, in main
    process()
ValueError: not a number

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3232, in main
    process()
ValueError: not a number
"""


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (DATA_LOSS, IntegrityError, "gone from Kafka: Could not read records in offset [5, 70) for topic"),
        (OFFSET_CHANGED, IntegrityError, "Partition raw-0 offset was changed from 99 to 4."),
        (TIMED_OUT, ServiceUnreachable, "TimeoutException: Timed out waiting for a node assignment"),
        (DENIED, ConfigurationError, "Not authorized to access topics: [raw]."),
        (CODED, CircuitOpen, "9 of the last 10 would be quarantined."),
        (UNKNOWN, AdmitoneError, "unexpectedly: java.io.IOException: No space left on device"),
        (IN_A_WORKER, AdmitoneError, "unexpectedly: ValueError: not a number"),
        ("", AdmitoneError, "no reason was given"),
    ],
    ids=["data-loss", "offset-changed", "timed-out", "denied", "ours", "unknown", "worker", "silence"],
)  # fmt: skip
def test_the_text_of_an_error_says_what_it_means(
    text: str, kind: type[AdmitoneError], words: str
) -> None:
    told = explained(Exception(text))

    assert type(told) is kind
    assert words in told.problem
    assert told.remedy


def test_a_batch_ends_with_one_line_but_an_interruption_stays_as_it_is() -> None:
    interrupted = RuntimeError("py4j.protocol.Py4JJavaError: java.lang.InterruptedException")

    with pytest.raises(IntegrityError) as told, told_in_a_line():
        raise RuntimeError(DATA_LOSS)
    assert "\n" not in str(told.value)
    assert told.value.__suppress_context__
    with pytest.raises(RuntimeError) as kept, told_in_a_line():
        raise interrupted
    assert kept.value is interrupted

"""The README and the guides do what they say: every block of theirs is done, in order, on real servers."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from admitone.ops.init import Profile, template
from tests.servers.kafka import PASSWORD as KAFKA_PASSWORD
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.postgres import free_port
from tests.servers.redis import PASSWORD as REDIS_PASSWORD
from tests.servers.redis import RedisServer
from tests.support.page_reader import Reader, Shell, finish_queries
from tests.support.page_steps import steps_of
from tests.support.pipeline import event
from tests.support.repository import ROOT
from tests.support.running import shared_spark

THIS = "tests/docs/test_guides.py::test_a_page_does_what_it_says"
DEMO = "tests/spark/test_demo.py::test_the_demo_leaves_its_dashboard_up_and_says_where"
CLUSTER = "tests/spark/test_cluster.py::test_losing_a_worker_with_a_published_block_loses_nothing_and_repeats_nothing"
PYTHON = "tests/unit/test_worker_python.py::test_an_interpreter_that_was_chosen_is_kept"
LOST_TOPIC = "tests/unit/test_cli_operator.py::test_a_block_of_unknown_fate_is_given_up"
READER = "tests/ports/test_read_only.py::test_a_role_that_may_only_select_is_answered_the_same"
DONE_ELSEWHERE = {
    "README.md": {"make demo": DEMO, "make test": THIS, "admitone demo --serve": DEMO},
    "docs/guide/serve.md": {"admitone demo --serve": DEMO},
    # A topic must be lost together with the answer to a publish.
    "docs/guide/closing-a-run.md": {
        'admitone quarantine discard --block N --reason "the topic was lost"': LOST_TOPIC
    },
    "docs/guide/postgresql.md": {
        # Roles belong to the server, not to the schema that a page has here.
        "GRANT USAGE ON SCHEMA ledger TO analyst;\n"
        "GRANT SELECT ON ALL TABLES IN SCHEMA ledger TO analyst;\n"
        "ALTER DEFAULT PRIVILEGES FOR ROLE admitone IN SCHEMA ledger GRANT SELECT ON TABLES TO analyst;": READER,
        'admitone quarantine discard --block N --reason "given up before the restore"': LOST_TOPIC,
    },
    "docs/guide/cluster.md": {
        # On several machines; the end of the page has the same on one.
        "admitone run": CLUSTER,
        # Packages come from an index that tests do not ask; what is ours is to leave the interpreter alone.
        "python -m venv env && env/bin/pip install admitone venv-pack": PYTHON,
        "env/bin/venv-pack -p env -o environment.tar.gz --exclude '*/pyspark/jars/*'": PYTHON,
        '[spark.options]\n"spark.archives" = "environment.tar.gz#environment"': PYTHON,
        "PYSPARK_PYTHON=./environment/bin/python admitone run": PYTHON,
    },
}
PAGES = ["README.md", *(f"docs/guide/{page.name}" for page in sorted(ROOT.glob("docs/guide/*.md")))]
CLICKS, PARTITIONS = 180, 3


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@dataclass
class Servers:
    """What a page's servers are here; each is started when it is asked for."""

    request: pytest.FixtureRequest
    folder: Path

    @property
    def kafka(self) -> KafkaBroker:
        """A broker whose topics go away with the page."""
        return self.request.getfixturevalue("emptied_broker")

    @property
    def redis(self) -> RedisServer:
        return self.request.getfixturevalue("redis_server")

    @cached_property
    def database(self) -> str:
        return self.request.getfixturevalue("postgres_server").new_schema()


@pytest.fixture
def emptied_broker(kafka_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    administrator = kafka_broker.administrator()
    before = administrator.list_topics(timeout=30).topics.keys()
    yield kafka_broker
    made = administrator.list_topics(timeout=30).topics.keys() - before
    for deleted in administrator.delete_topics(sorted(made)).values() if made else ():
        deleted.result(30)


def readme(servers: Servers) -> Reader:
    topics = tomllib.loads(template(Profile.PRODUCTION))["topics"]
    return Reader(
        environment={
            "": {"ADMITONE_SERVICE__PORT": str(free_port())},
            "--home live": {
                "ADMITONE_TRANSPORT__KAFKA__BOOTSTRAP": servers.kafka.bootstrap_of("SASL_SSL"),
                "ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD": KAFKA_PASSWORD,
                "ADMITONE_TRANSPORT__KAFKA__SSL_CA": str(
                    servers.kafka.certificates / "authority.pem"
                ),
                # There is one broker.
                "ADMITONE_TRANSPORT__RAW_REPLICATION": "1",
                "ADMITONE_TOPICS": json.dumps([{**topic, "replication": 1} for topic in topics]),
                "ADMITONE_LEDGER__URL": servers.database,
            },
        },
        names={"EVENT_ID": an_admitted_event},
    )


def an_admitted_event(shell: Shell) -> str:
    _, line = shell.run("admitone decisions --verdict ADMITTED --limit 1 --jsonl")
    return json.loads(line)["event_id"]


def serve(_: Servers) -> Reader:
    return Reader(names={"8601": str(free_port())})


def topk(servers: Servers) -> Reader:
    redis = servers.redis.new_database()
    variables = {
        "ADMITONE_RESULTS__URL": redis,
        "ADMITONE_RESULTS__PASSWORD": REDIS_PASSWORD,
        "REDISCLI_AUTH": REDIS_PASSWORD,
        "ADMITONE_HISTORY__URL": servers.database,
    }
    return Reader(
        environment={"": variables},
        names={"-u rediss://admitone@redis.internal:6379/0": f"-u {redis}"},
        database=servers.database,
    )


def postgresql(servers: Servers) -> Reader:
    return Reader(environment={"": {"ADMITONE_LEDGER__URL": servers.database}})


def on_kafka(servers: Servers, **more: str) -> dict[str, dict[str, str]]:
    given = {
        "ADMITONE_TRANSPORT__KAFKA__BOOTSTRAP": servers.kafka.bootstrap,
        "ADMITONE_LEDGER__URL": servers.database,
    }
    return {"": {**given, **more}}


def kafka(servers: Servers) -> Reader:
    return Reader(environment=on_kafka(servers))


def cluster(servers: Servers) -> Reader:
    # Workers would write into the folder of the package.
    given = on_kafka(servers, SPARK_WORKER_DIR=str(servers.folder / "work"))
    return Reader(environment=given, names={"7077": str(free_port())})


def dedup_state(servers: Servers) -> Reader:
    """Three orders, one of them twice."""
    orders = servers.folder / "in"
    orders.mkdir()
    rows = [
        {"orderId": f"o{number % 3}", "timestamp": "2026-01-05T10:00:00Z"} for number in range(4)
    ]
    (orders / "1.json").write_text("\n".join(json.dumps(row) for row in rows))
    spark = shared_spark().newSession()
    stream = spark.readStream.schema("orderId STRING, timestamp TIMESTAMP").json(str(orders))
    kept = servers.folder / "data/orders"

    def compare() -> None:
        assert spark.read.parquet(str(kept)).count() == 3

    return Reader(
        names={"/data/": f"{servers.folder}/data/"},
        python={"spark": spark, "stream": stream},
        afterwards=compare,
    )


def replays(servers: Servers) -> Reader:
    """A topic with clicks, and a job that copies all of them twice."""
    broker, folder = servers.kafka, servers.folder
    raw = {"message.timestamp.type": "LogAppendTime", "retention.ms": "604800000"}
    wanted = [
        NewTopic("clicks", PARTITIONS, 1),
        NewTopic("copies", 2, 1, config=raw),
        NewTopic("clicks.counted", 1, 1),
    ]
    administrator = broker.administrator()  # what it promises is lost with it
    for made in administrator.create_topics(wanted).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(CLICKS):
        producer.produce("clicks", event(f"e{number}"), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    spark = shared_spark().newSession()
    python: dict[str, Any] = {
        "spark": spark, "bootstrap": broker.bootstrap, "cluster_id": "shop", "topic_id": "clicks-1",
    }  # fmt: skip
    names = {"checkpoints/": f"{folder}/checkpoints/"}
    steps = steps_of(text_of("docs/guide/replays.md"))
    (copying,) = (step.text for step in steps if 'option("topic", "copies")' in step.text)

    def copy_again(_: Shell) -> None:
        shutil.rmtree(folder / "checkpoints/copies")
        exec(copying.replace("checkpoints/", names["checkpoints/"]), python)
        finish_queries(spark)
        seen = python["once"].writeStream.format("memory").queryName("once")
        seen.trigger(availableNow=True).start().awaitTermination()
        assert spark.table("once").count() == CLICKS

    def compare() -> None:
        assert len(read_committed(broker.bootstrap, "clicks.counted")) == PARTITIONS

    return Reader(
        environment=on_kafka(servers),
        names={**names, "4242": lambda _: str(python["me"])},
        before={"admitone run boundary --until-idle": copy_again},
        python=python,
        afterwards=compare,
    )


READERS: dict[str, Callable[[Servers], Reader]] = {
    "README.md": readme,
    "docs/guide/cluster.md": cluster,
    "docs/guide/dedup-state.md": dedup_state,
    "docs/guide/kafka.md": kafka,
    "docs/guide/postgresql.md": postgresql,
    "docs/guide/replays.md": replays,
    "docs/guide/serve.md": serve,
    "docs/guide/topk.md": topk,
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(
    page: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    servers = Servers(request, tmp_path)
    reader = READERS[page](servers) if page in READERS else Reader()
    reader.skipped = tuple(DONE_ELSEWHERE.get(page, ()))
    reader.read(page, steps_of(text_of(page)), folder)


@pytest.mark.parametrize("page", DONE_ELSEWHERE)
def test_what_is_not_done_here_is_on_the_page_and_has_its_test(page: str) -> None:
    steps = [step.what for step in steps_of(text_of(page))]
    for left_out, test in DONE_ELSEWHERE[page].items():
        file, _, name = test.partition("::")
        assert left_out in steps
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")

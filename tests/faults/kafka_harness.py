"""The boundary on a real Kafka, struck at its crash points and from outside; compared with the oracle.

Every home has topics of its own on a shared broker, and short timeouts. At the end, beside everything that is compared
on any log, a plain read-committed consumer must see each admitted identity once, where its receipt says, and
nothing else.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from admitone.boundary import open_boundary
from admitone.core.errors import ServiceUnreachable
from admitone.demo.traffic import Truth
from admitone.infra.clock import Patience
from tests.faults.database_harness import Strike, weather
from tests.faults.harness import (
    FINISHED,
    UNREACHABLE,
    Case,
    Fault,
    prepare,
    settings_for,
    start,
    strike,
    verify,
)
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.kafka_proxy import ALWAYS, Api, KafkaProxy
from tests.servers.kafka_proxy import Fault as Cut
from tests.servers.kafka_records import THEIRS, new_name, open_transaction

DELIVERY_TIMEOUT_S = 3.0
_SETTINGS = """
[ledger]
url = "{ledger}"
[transport]
kind = "kafka"
raw_topic = "{name}-raw"
raw_replication = {replication}
[transport.kafka]
bootstrap = "{bootstrap}"
delivery_timeout = "3s"
transaction_timeout = "5s"
look_timeout = "6s"
[[topics]]
family = "shop"
topic = "{name}-shop"
event_types = ["product_view", "search", "purchase"]
partitions = 2
replication = {replication}
[[topics]]
family = "rest"
topic = "{name}-rest"
event_types = ["page_view", "api_request"]
partitions = 1
replication = {replication}
"""
_STORM_EVENTS = 3_000
HELD_BACK = (Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN, Api.INIT_PRODUCER_ID)
"""The requests of a transaction, each of which a network can hold back."""
_PATIENCE_S = 60.0
Place = tuple[str, int, int]


def prepare_on_kafka(
    home: Path,
    seed: int,
    bootstrap: str,
    ledger_url: str = "sqlite:data/ledger.db",
    events: int = 240,
    replication: int = 1,
) -> Truth:
    """Make a home folder with topics of its own and generated traffic in them; return what is true about it."""
    make_home(home, bootstrap, ledger_url, replication)
    truth = prepare(home, seed, events)
    _claim(home)
    return truth


def _claim(home: Path) -> None:
    """Make the topics the ledger's: what is struck later is a pipeline that started before."""
    patience = Patience(_PATIENCE_S)
    with closing(open_boundary(settings_for(home))) as boundary:
        while True:
            try:
                boundary.take_topics()
                return
            except ServiceUnreachable:
                # The first claim on a broker waits until it has made its own topics.
                if not patience.pause():
                    raise


def make_home(
    home: Path, bootstrap: str, ledger_url: str = "sqlite:data/ledger.db", replication: int = 1
) -> None:
    """Make a home folder whose topics nobody else uses."""
    home.mkdir(parents=True, exist_ok=True)
    settings = _SETTINGS.format(
        ledger=ledger_url, bootstrap=bootstrap, name=new_name(), replication=replication
    )
    (home / "admitone.toml").write_text(settings)


def verify_on_kafka(home: Path, truth: Truth, bootstrap: str) -> list[str]:
    """Compare everything with the truth, and what a plain consumer sees with the receipts."""
    return [*verify(home, truth), *compare_with_receipts(home, bootstrap)]


def compare_with_receipts(home: Path, bootstrap: str) -> list[str]:
    """Return where the admitted topics and the evidence files differ; nothing of ours reads the topics."""
    pinned = _pinned(home)
    seen: dict[Place, str | None] = {}
    for entry in settings_for(home).topics:
        for record in read_committed(bootstrap, entry.topic):
            if record.value() != THEIRS:
                headers = dict(record.headers() or ())
                identity = headers.get("identity")
                place = (entry.topic, record.partition(), record.offset())
                seen[place] = None if identity is None else identity.hex()
    twice = [identity for identity, times in Counter(seen.values()).items() if times > 1]
    return [
        *(f"identity {identity} is on the log more than once" for identity in twice),
        *(
            f"{place} holds {seen.get(place)}, its receipt says {pinned.get(place)}"
            for place in seen.keys() | pinned.keys()
            if seen.get(place) != pinned.get(place)
        ),
    ]


def _pinned(home: Path) -> dict[Place, str]:
    """Return the identity that the receipts, or resolutions, pin to each place."""
    pinned = {}
    for kind in ("receipts", "resolutions"):
        for file in (home / "data" / "evidence").glob(f"runs/*/{kind}/*.parquet"):
            for row in pq.read_table(file).to_pylist():
                if row["bus_offset"] is not None:
                    place = (row["bus_topic"], row["bus_partition"], row["bus_offset"])
                    pinned[place] = row["identity"].hex()
    return pinned


def run_kafka_case(
    case: Case, home: Path, bootstrap: str, ledger_url: str = "sqlite:data/ledger.db"
) -> tuple[int, list[str]]:
    """Strike at crash points; return how many faults struck and what is wrong."""
    truth = prepare_on_kafka(home, case.seed, bootstrap, ledger_url)
    return strike(case, home, lambda: verify_on_kafka(home, truth, bootstrap))


def run_ambiguous_case(
    home: Path, broker: KafkaBroker, proxy: KafkaProxy, case: Case, *, written: bool
) -> tuple[int, list[str]]:
    """Leave a block of unknown fate behind, written or not, then strike at points of reconciliation."""
    truth = prepare_on_kafka(home, case.seed, broker.proxied)
    proxy.meanwhile = lambda: proxy.arm(Api.INIT_PRODUCER_ID, Cut.BEFORE, ALWAYS)
    proxy.arm(Api.END_TXN, Cut.AFTER if written else Cut.BEFORE, ALWAYS)
    ended = finish(home)
    proxy.meanwhile = lambda: None
    proxy.disarm()
    struck, problems = strike(case, home, lambda: verify_on_kafka(home, truth, broker.bootstrap))
    if ended != UNREACHABLE:
        problems.append(f"without an answer the boundary ended with {ended}")
    return struck, problems


def run_hidden_case(
    home: Path, broker: KafkaBroker, seed: int, *, commit: bool, patient: bool
) -> list[str]:
    """Kill a boundary behind somebody else's open transactions, and recover while they are open.

    A patient recovery waits until they end; otherwise they end only after recovery has given up looking.
    """
    truth = prepare_on_kafka(home, seed, broker.bootstrap)
    finish(home, Fault("boundary.settled", 2, "kill"))
    others = [open_transaction(broker, entry.topic) for entry in settings_for(home).topics]
    killed = finish(home, Fault("boundary.published", 2, "kill"))
    problems = [] if killed == -signal.SIGKILL else [f"it was not killed, but ended with {killed}"]

    def end() -> None:
        for other in others:
            (other.commit_transaction if commit else other.abort_transaction)(20)

    timer = threading.Timer(2.0, end)
    if patient:
        timer.start()
    endings = [finish(home)]
    timer.join() if patient else end()
    endings.append(finish(home))
    if endings != [FINISHED, FINISHED]:
        problems.append(f"recovery ended with {endings}")
    return problems + verify_on_kafka(home, truth, broker.bootstrap)


def finish(home: Path, fault: Fault | None = None) -> int | None:
    """Make one attempt and return how it ended."""
    process = start(home, 20, fault and fault.spec(home / f"struck-{fault.point}"))
    process.join(_PATIENCE_S)
    return process.exitcode


def kafka_storm(
    home: Path, seed: int, broker: KafkaBroker, bootstrap: str, strike: Strike, wanted: int,
    pause_s: float, ledger_url: str = "sqlite:data/ledger.db",
) -> tuple[int, list[str]]:  # fmt: skip
    """Strike the broker, or the connections to it, under a boundary at work."""
    truth = prepare_on_kafka(home, seed, broker.bootstrap, ledger_url, _STORM_EVENTS)
    file = home / "admitone.toml"
    file.write_text(file.read_text().replace(broker.bootstrap, bootstrap))
    return weather(
        home,
        random.Random(seed),
        strike,
        wanted,
        pause_s,
        lambda: verify_on_kafka(home, truth, broker.bootstrap),
    )


def kills(broker: KafkaBroker) -> Strike:
    """Return a strike that kills the broker and starts it again."""

    def strike(rng: random.Random) -> int:
        broker.kill()
        time.sleep(rng.choice((0.0, 0.5)))
        broker.start()
        return 1

    return strike


def pauses(broker: KafkaBroker) -> Strike:
    """Return a strike that pauses the broker, mostly for longer than a delivery may take."""

    def strike(rng: random.Random) -> int:
        broker.pause()
        time.sleep(DELIVERY_TIMEOUT_S * rng.choice((0.5, 1.3, 2.5)))
        broker.resume()
        return 1

    return strike


def cuts(proxy: KafkaProxy) -> Strike:
    """Return a strike that cuts all connections, or those with a certain request, once or for a while."""

    def strike(rng: random.Random) -> int:
        if rng.random() < 0.15:
            return min(1, proxy.cut_all())
        before, lasting = sum(proxy.struck.values()), rng.random() < 0.35
        apis = [rng.choice((Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN, Api.END_TXN))]
        apis += [api for api in (Api.INIT_PRODUCER_ID, Api.FETCH) if rng.random() < 0.4]
        for api in apis:
            fault = rng.choice((Cut.BEFORE, Cut.AFTER, Cut.AFTER))
            proxy.arm(api, fault, ALWAYS if lasting else rng.randint(1, 3))
        until = time.monotonic() + DELIVERY_TIMEOUT_S * rng.choice((0.3, 1.5))
        while time.monotonic() < until and (lasting or sum(proxy.struck.values()) == before):
            time.sleep(0.01)
        proxy.disarm()
        return int(sum(proxy.struck.values()) > before)

    return strike


def late_requests(proxy: KafkaProxy, api: Api) -> Strike:
    """Return a strike that holds a request back and lets the broker have it between two later ones."""

    def strike(rng: random.Random) -> int:
        before, delivered = proxy.struck[api, Cut.HELD], proxy.delivered[api]
        if api is Api.INIT_PRODUCER_ID:
            # A worker at work takes its producer over again only after an end that was slow.
            proxy.arm(Api.END_TXN, Cut.DELAYED)
        proxy.arm(api, Cut.HELD)
        _wait(lambda: proxy.struck[api, Cut.HELD] > before)
        proxy.disarm()
        proxy.deliver_before(rng.choice((Api.PRODUCE, *HELD_BACK)), rng.randint(1, 4))
        _wait(lambda: proxy.delivered[api] > delivered)
        proxy.disarm()
        proxy.deliver()
        return proxy.delivered[api] - delivered

    return strike


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DELIVERY_TIMEOUT_S
    while not until() and time.monotonic() < deadline:
        time.sleep(0.005)

"""A real Kafka for tests: one KRaft node of its own on free ports of 127.0.0.1, gone afterwards."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.certificates import make_certificates
from tests.servers.kafka_java import QUICK, java_command
from tests.servers.processes import suspend

USER, PASSWORD = "admitone", "opensesame"
_CLUSTER_ID = "YWRtaXRvbmUtdGVzdHMtMQ"
_START_SECONDS = 60.0
_PLAIN = {"CONTROLLER": "PLAINTEXT", "DIRECT": "PLAINTEXT", "PROXIED": "PLAINTEXT"}
_SECURE = {"SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL", "SSL": "SSL"}
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "DIRECT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker is not let in again before its old session ended.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.backoff.ms": "500",
}


_held: list[socket.socket] = []


def lasting_port() -> int:
    """Return a free port that no outgoing connection takes while nobody listens on it.

    It is held for as long as this process lives, so that no other test takes it before its server listens on it.
    """
    while True:
        # Systems take the ports of outgoing connections from 32768 upwards.
        holder, port = socket.socket(), random.randint(15_000, 32_000)
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # A server sets the same option, and listens although the address is held.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder)
        return port


class KafkaBroker:
    """One node; it can be killed, paused and started again on the same ports and data.

    A client follows the address a broker advertises, so a proxy needs a listener of its own: what connects
    to `proxied` is told to stay on `proxy_port`, and whoever listens there forwards to `behind_proxy`.
    `secure` adds listeners with SASL (PLAIN and SCRAM-SHA-512), TLS, and both; `SSL` asks for a client's certificate.
    `voters` makes it a node of a cluster: the ports at which the controllers of the nodes are reached. `features` are
    set to other versions than the newest, as `transaction.version=1`.
    """

    def __init__(
        self,
        *,
        secure: bool = False,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = QUICK,
        folder: Path | None = None,
        node: int = 1,
        voters: Mapping[int, int] | None = None,
        features: Sequence[str] = (),
    ) -> None:
        self._node, self._voters, self._features = node, voters, features
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="admitone-kafka-"))
        self.certificates = self.folder / "certificates"
        self.proxy_port = lasting_port()
        self._java_options = java_options
        self._protocols = {**_PLAIN, **(_SECURE if secure else {})}
        self._ports = {listener: lasting_port() for listener in self._protocols}
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        if secure:
            make_certificates(self.certificates)
        self._initialise(settings or {})
        if voters is None:
            self.start()

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return self.bootstrap_of("DIRECT")

    @property
    def proxied(self) -> str:
        """Where clients connect to that go through a proxy on `proxy_port`."""
        return f"127.0.0.1:{self.proxy_port}"

    @property
    def behind_proxy(self) -> int:
        """The port a proxy forwards to."""
        return self._ports["PROXIED"]

    @property
    def controller_port(self) -> int:
        """The port its controller listens on."""
        return self._ports["CONTROLLER"]

    def bootstrap_of(self, listener: str) -> str:
        """Return where clients of a secure listener connect to: SASL_PLAINTEXT, SASL_SSL or SSL."""
        return f"127.0.0.1:{self._ports[listener]}"

    def administrator(self) -> AdminClient:
        """Return a client that manages topics."""
        return AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def new_topic(self, partitions: int = 1, **settings: str) -> str:
        """Make a topic with a name of its own; settings are the broker's, with `_` for `.`."""
        topic = f"topic-{next(self._numbers)}"
        config = {name.replace("_", "."): value for name, value in settings.items()}
        administrator = self.administrator()  # what it promises is lost with it
        made = administrator.create_topics([NewTopic(topic, partitions, 1, config=config)])
        made[topic].result(30)
        return topic

    @property
    def pid(self) -> int:
        """Return the process id of the running broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether its process was started and not killed since; it may be paused."""
        return self._process is not None

    def launch(self) -> None:
        """Start the broker."""
        if self._process is None:
            self._process = self._spawn()

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        self.launch()
        assert self._process is not None
        administrator = self.administrator()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if administrator.list_topics(timeout=1).brokers:
                    return
            except KafkaException as reason:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka does not start: {self._last_words()}") from reason

    def kill(self) -> None:
        """Kill the broker, as a crash of its process would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)
            self._process = None

    def restart(self) -> None:
        """Kill the broker and start it again."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let nothing move any more; connections stay open."""
        suspend(self.pid)

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop and remove everything; what is removed need not be written out first."""
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker does not run"
        self._process.send_signal(number)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                java_command(self._java_options, "kafka.Kafka", self.folder / "server.properties"),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )

    def _last_words(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def _initialise(self, settings: Mapping[str, str]) -> None:
        properties = self.folder / "server.properties"
        lines = {**self._properties(), **settings}
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        scram = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
        with (self.folder / "log").open("ab") as log:
            subprocess.run(
                java_command(
                    QUICK, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID,
                    "-c", properties, "--add-scram", scram,
                    *(["--standalone"] if self._voters is None else []),
                    *(word for feature in self._features for word in ("--feature", feature)),
                ),
                check=True, stdout=log, stderr=log,
            )  # fmt: skip

    def _properties(self) -> dict[str, str]:
        here = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        advertised = {**here, "PROXIED": f"PROXIED://127.0.0.1:{self.proxy_port}"}
        del advertised["CONTROLLER"]
        quorum = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{self._ports['CONTROLLER']}"}
        if self._voters is not None:
            reached = {n: f"127.0.0.1:{port}" for n, port in self._voters.items()}
            advertised["CONTROLLER"] = f"CONTROLLER://{reached[self._node]}"
            voters = (f"{number}@{address}" for number, address in reached.items())
            quorum = {"node.id": str(self._node), "controller.quorum.voters": ",".join(voters)}
        protocols = (f"{name}:{protocol}" for name, protocol in self._protocols.items())
        return {
            **_SETTINGS,
            "log.dirs": str(self.folder / "data"),
            **quorum,
            "listeners": ",".join(here.values()),
            "advertised.listeners": ",".join(advertised.values()),
            "listener.security.protocol.map": ",".join(protocols),
            **(self._security() if "SSL" in self._protocols else {}),
        }

    def _security(self) -> dict[str, str]:
        package = "org.apache.kafka.common.security"
        plain = f'{package}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = f"{package}.scram.ScramLoginModule required;"
        modules = {
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": module
            for listener in ("sasl_plaintext", "sasl_ssl")
            for mechanism, module in (("plain", plain), ("scram-sha-512", scram))
        }
        return {
            **modules,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates / "authority.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
        }


def read_committed(
    bootstrap: str, topic: str, *, whole: bool = True, timeout: float = 10.0
) -> list[Message]:
    """Return what a plain consumer sees of a topic, up to its end or else up to the last stable offset.

    A broker answers a commit before readers see it, so a test that expects something wants the whole.
    """
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    committed = {**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 20}
    reader = Consumer({**committed, "enable.partition.eof": True})
    places = [
        TopicPartition(topic, partition, OFFSET_BEGINNING)
        for partition in reader.list_topics(topic, timeout=timeout).topics[topic].partitions
    ]
    ends = dict.fromkeys((place.partition for place in places), 0)
    if whole:
        uncommitted = Consumer({**settings, "isolation.level": "read_uncommitted"})
        for place in places:
            ends[place.partition] = uncommitted.get_watermark_offsets(place, timeout)[1]
        uncommitted.close()
    try:
        reader.assign(places)
        records = []
        while ends:
            message = reader.poll(timeout)
            if message is None:
                raise TimeoutError(f"partitions {sorted(ends)} of {topic} do not end: {ends}")
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif message.offset() >= ends.get(message.partition(), 0):
                ends.pop(message.partition(), None)
        return sorted(records, key=lambda record: (record.partition(), record.offset()))
    finally:
        reader.close()

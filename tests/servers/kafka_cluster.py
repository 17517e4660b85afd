"""A real Kafka of three nodes: one of them can be killed, paused or cut off from everything, and brought back.

Each node is a broker and a controller. All connections lead through links, from clients as well as between nodes, so
that a node that is cut off neither hears nor reaches anybody, and may go on believing that it leads.
"""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.kafka import KafkaBroker, lasting_port
from tests.servers.tcp_proxy import TcpProxy, cut

NODES = (1, 2, 3)
_PATIENCE_S = 90.0
_SETTINGS = {
    "inter.broker.listener.name": "PROXIED",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Who comes back leads again at once, so that each strike finds a leader.
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
}
_HEAP = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaCluster:
    """Three nodes, each topic on all of them; whoever connects is told addresses of links."""

    def __init__(self) -> None:
        voters = {node: lasting_port() for node in NODES}

        def member(node: int) -> KafkaBroker:
            return KafkaBroker(settings=_SETTINGS, java_options=_HEAP, node=node, voters=voters)

        with ThreadPoolExecutor(len(NODES)) as pool:
            self._members = dict(zip(NODES, pool.map(member, NODES), strict=True))
        self._cut_off: int | None = None
        self._from_clients = True
        self._links = [
            _Link(self, node, target, port)
            for node, broker in self._members.items()
            for target, port in (
                (broker.behind_proxy, broker.proxy_port),
                (broker.controller_port, voters[node]),
            )
        ]
        for broker in self._members.values():
            broker.launch()
        for broker in self._members.values():
            broker.start()
        offsets = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
        self.new_topic("__consumer_offsets", 4, offsets)

    @property
    def bootstrap(self) -> str:
        """Where clients connect to."""
        return ",".join(broker.proxied for broker in self._members.values())

    def bootstrap_of(self, node: int) -> str:
        """Return where clients connect to that ask one node first."""
        return self._members[node].proxied

    def administrator(self) -> AdminClient:
        """Return a client that manages topics."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def new_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Make a topic that is on all nodes."""
        administrator = self.administrator()
        made = administrator.create_topics([NewTopic(name, partitions, 3, config=settings)])
        made[name].result(30)

    def leader(self, topic: str) -> int:
        """Return the node that leads the first partition of a topic."""
        found = self.administrator().list_topics(topic, timeout=10).topics[topic]
        return int(found.partitions[0].leader)

    def kill(self, node: int) -> None:
        """Kill a node, as a crash of its process would."""
        self._members[node].kill()

    def pause(self, node: int) -> None:
        """Let nothing of a node move any more; connections stay open."""
        self._members[node].pause()

    def cut_off(self, node: int, *, from_clients: bool = True) -> None:
        """Cut a node off from clients and from the other nodes, both ways; it goes on by itself."""
        self._cut_off, self._from_clients = node, from_clients
        for link in self._links:
            link.cut_strangers()

    def bring_back(self) -> None:
        """Let all nodes run and reach each other, and wait until each has everything and leads what it should."""
        self._cut_off = None
        for broker in self._members.values():
            if broker.runs:
                broker.resume()
            else:
                broker.launch()
        self._await_whole()

    def parted(self, source: int, node: int) -> bool:
        """Tell whether a connection from a port of this machine to a node is cut off."""
        if self._cut_off is None:
            return False
        if node != self._cut_off:
            return source in self._ports(self._cut_off)
        others = (number for number in NODES if number != node)
        return (
            source not in self._ports(node)
            if self._from_clients
            else any(source in self._ports(other) for other in others)
        )

    def close(self) -> None:
        """Stop and remove everything."""
        for link in self._links:
            link.close()
        for broker in self._members.values():
            broker.close()

    def _ports(self, node: int) -> set[int]:
        process = psutil.Process(self._members[node].pid)
        return {connection.laddr.port for connection in process.net_connections("tcp")}

    def _await_whole(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        administrator = self.administrator()
        while True:
            with contextlib.suppress(KafkaException):
                if all(map(_whole, administrator.list_topics(timeout=5).topics.values())):
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all replicas are back after {_PATIENCE_S:.0f} s")
            time.sleep(0.1)


class _Link(TcpProxy):
    """Carries bytes between a listener of a node and who connects to it."""

    def __init__(self, cluster: KafkaCluster, node: int, target: int, port: int) -> None:
        super().__init__(target, port)
        self._cluster, self._node = cluster, node
        self.listen()

    def lets_in(self, client: socket.socket) -> bool:
        """Tell whether who connects is not cut off from this node."""
        return not self._parted(client)

    def cut_strangers(self) -> None:
        """Cut the connections of who is cut off from this node."""
        with self._lock:
            pairs = list(self._pairs)
        for client, server in pairs:
            if self._parted(client):
                cut(client)
                cut(server)

    def _parted(self, client: socket.socket) -> bool:
        try:
            return self._cluster.parted(client.getpeername()[1], self._node)
        except OSError:
            return True  # It is gone already.

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        _carry(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        _carry(server, client)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    cut(source)
    cut(sink)


def _whole(topic: Any) -> bool:
    return all(
        len(part.isrs) == len(NODES) and part.leader == part.replicas[0]
        for part in topic.partitions.values()
    )

"""Every document is as described: what the API answers, and what `--json` prints; there is a case for each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from admitone.boundary.release import ReleaseDocument
from admitone.cli import serve_commands
from admitone.core.contract import Contract, Keeping, Live, TopicDocument, compare
from admitone.core.errors import ServiceUnreachable
from admitone.core.sizing import Size
from admitone.evidence.audit.closing import ClosingDocument
from admitone.evidence.audit.verify import VerificationDocument
from admitone.evidence.quarantined import QuarantinedDelivery
from admitone.ledger.books import Books
from admitone.ledger.decision_rows import Decision, Decisions
from admitone.ledger.query_text import EventReceipt
from admitone.ops import run
from admitone.ops.close import AttemptsDocument
from admitone.ops.decision_rules import RulesDifference, RulesDocument, RulesList
from admitone.ops.lag import Lag, LagMeter
from admitone.ops.proofs import Exported
from admitone.ops.quarantine import Discarded, Quarantined
from admitone.ops.recompute import RecomputeDocument
from admitone.ops.reconcile import ReconciledBlock, ReconciliationDocument
from admitone.ops.signing_keys import Keys
from admitone.ops.status import StatusDocument
from admitone.ops.tokens import NewToken
from admitone.ops.topics import TopicsDocument
from admitone.results.documents import (
    ItemAnswer,
    ItemHistory,
    TopAnswer,
    TotalsOfList,
    TrendAnswer,
    WindowLines,
)
from admitone.service.http import server
from admitone.service.http.api import ROUTERS, create_app
from admitone.service.live.live_feed import GatePart, LagPart, SecondRates, Trouble
from admitone.settings import Settings
from admitone.simulation.simulator import SimulationDocument
from admitone.spark.checkpoints import state_checkpoint, write_figures
from admitone.transport.ingest import IngestDocument
from tests.servers.service import Running, wait_until
from tests.support.command_line import Cli, cli, commands
from tests.support.deduplicated import DedupPipeline
from tests.support.described import DescribedApi, described_api, differing
from tests.support.flaky import flaky
from tests.support.homes import count_everything, fill, serving
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

__all__ = ["cli"]

RUN = run.PipelineOutcome | run.DedupOutcome | run.StateOutcome
DESCRIBED: dict[str, Any] = {
    "ingest": IngestDocument,
    "run": RUN,
    "serve": serve_commands.Serving,
    "token": NewToken,
    "status": StatusDocument,
    "books": Books,
    "decisions": Decisions,
    "receipt": EventReceipt,
    "quarantine list": Quarantined,
    "quarantine show": QuarantinedDelivery,
    "quarantine release": ReleaseDocument,
    "quarantine discard": Discarded | ReconciledBlock,
    "reconcile": ReconciliationDocument,
    "close": ClosingDocument | AttemptsDocument,
    "verify": VerificationDocument,
    "export": Exported,
    "rules show": RulesDocument | RulesList,
    "rules diff": RulesDifference,
    "keys list": Keys,
    "keys rotate": Keys,
    "keys retire": Keys,
    "topics check": TopicsDocument,
    "topics create": TopicsDocument,
    "topics accept": TopicsDocument,
    "top": TopAnswer,
    "item": ItemAnswer | ItemHistory,
    "trend": TrendAnswer,
    "windows": WindowLines | TotalsOfList,
    "recompute": RecomputeDocument,
    "size": Size,
    "simulate": SimulationDocument,
}

LINES = {"decisions": Decision, "quarantine list": Decision}
LIVE = {"topk": TopAnswer, "rates": list[SecondRates], "lag": LagPart, "gate": GatePart}
PAGES = {"/", "/docs", "/openapi.json", "/web"}
WHY = ("--reason", "seen by hand")


class Story:
    """What an operator asks on the command line, and in what the answers are not as described."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self.home = Path()
        self.asked: set[str] = set()
        self.wrong: dict[str, list[str]] = {}

    def ask(self, words: str, *options: str) -> Any:
        """Ask for a document; return it, the first of several."""
        text = self._cli(*words.split(), *options, "--json", "--home", str(self.home)).out
        documents = list(_documents(text))
        assert documents, (words, options)
        for document in documents:
            self._note(words, differing(DESCRIBED[words], document))
        self.asked.add(words)
        return documents[0]

    def lines(self, words: str) -> None:
        """Ask for lines."""
        rows = self._cli(*words.split(), "--jsonl", "--home", str(self.home)).rows
        assert rows, words
        for row in rows:
            self._note(words, differing(LINES[words], row))

    def _note(self, words: str, wrong: list[str]) -> None:
        if wrong:
            self.wrong.setdefault(words, []).extend(wrong)


def _documents(text: str) -> Iterator[Any]:
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:].strip()


def takes(option: str) -> set[str]:
    """Return the commands that have an option."""
    found = commands().items()
    return {words for words, each in found if any(option in p.opts for p in each.params)}


def test_every_command_that_prints_a_document_has_a_description() -> None:
    assert takes("--json") == DESCRIBED.keys()
    assert takes("--jsonl") == LINES.keys()


def test_every_document_of_the_command_line_is_as_described(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(cli)
    story.home = tmp_path / "shop"
    a_day_with_everything(story, monkeypatch)
    story.home = tmp_path / "clean"
    a_run_is_closed_and_read_back(story)
    story.home = tmp_path / "trouble"
    a_block_of_unknown_fate(story)
    story.home = tmp_path / "topics"
    topics_that_are_missing_and_made_again(story)

    assert story.wrong == {}
    assert story.asked == DESCRIBED.keys()


def a_day_with_everything(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask about traffic with duplicates, contradictions and malformed events, decided, deduplicated and counted."""
    settings = fill(story.home, 600, malformed=0.05, contradictions=0.05)
    DedupPipeline(story.home, transport={}).run()
    checkpoint = state_checkpoint(settings, Pipeline(story.home, transport={}).topic)
    checkpoint.mkdir(parents=True)
    write_figures(checkpoint, {"rows": 7, "kept": 7, "late": 0, "commit_ms": 12, "dropped_late": 1})

    def measured(settings: Settings, *_: Any) -> Lag:
        return LagMeter(settings).measure()

    monkeypatch.setattr(run, "run", measured)
    monkeypatch.setattr(server, "serve", lambda _, announce: announce("http://127.0.0.1:8600/"))
    story.ask("run", "all", "dedup")
    story.ask("run", "dedup", "--engine", "state")
    story.ask("serve")
    story.ask("token", "wall", "--role", "read")
    story.ask("size", "--profile", "unique")
    story.ask("simulate", "--seed", "43", "--histories", "3")
    dedup = story.ask("status")["dedup"]
    assert [name for name, found in dedup.items() if found] == ["ledger", "state"]
    story.ask("books")
    rows = story.ask("decisions")["decisions"]
    story.lines("decisions")
    duplicate = next(
        row for row in rows if row["verdict"] == "DUPLICATE" and row["run_id"] == "shop"
    )
    story.ask("receipt", duplicate["event_id"], "--run", "shop")
    story.lines("quarantine list")
    listed = story.ask("quarantine list", "--run", "shop")["quarantined"]
    for row in {row["reason"]: row for row in listed}.values():
        story.ask("quarantine show", row["id"])
    assert story.ask("close", "shop")["closed"] is False
    story.ask("verify", "shop")
    story.ask("quarantine release", "--run", "shop", "--keep-first", *WHY)
    story.ask("quarantine discard", "--run", "shop", *WHY)
    story.ask("quarantine list", "--all")
    top = story.ask("top", "--dimension", "url", "--window", "1d")
    item = top["items"][0]["item"]
    story.ask("item", "url", item, "--window", "1d")
    hours = [line["window"] for line in story.ask("windows")["windows"] if line["kind"] == "hour"]
    story.ask("item", "url", item, "--from", hours[0], "--to", hours[-1])
    story.ask("trend", "--dimension", "url", "--window", "1d")
    story.ask("windows", "--dimension", "url", "--size", "1d")
    assert story.ask("recompute", "--accept")["switched"]


def a_run_is_closed_and_read_back(story: Story) -> None:
    """Ingest, close and verify; then lose what was decided last with an older copy of the ledger."""
    story.home.mkdir()
    pipeline = Pipeline(story.home, transport={"raw_partitions": 4})
    (story.home / "events.jsonl").write_bytes(event("a") + b"\n\n" + event("b") + b"\n")
    story.ask("ingest", str(story.home / "events.jsonl"))
    pipeline.run()
    assert story.ask("close", "default", "--dry-run")["gate"] == "green"
    assert story.ask("close", "default")["artifact"]
    assert story.ask("close", "default")["closed"]
    assert story.ask("close", "default", "--history")["attempts"]
    story.ask("export", "default", "--to", str(story.home / "exported"))
    in_force = story.ask("rules show")["hash"]
    assert story.ask("rules show", "--all")["rules"] == [
        {"hash": in_force, "in_force": True, "kept": True}
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADMITONE_DEDUP__RETENTION", "50d")
        (change,) = story.ask("rules diff", in_force)["changes"]
    assert change == {"path": "dedup.retention", "before": 8_640_000_000, "after": 4_320_000_000}
    (key,) = story.ask("keys list")["keys"]
    assert len(story.ask("keys rotate")["keys"]) == 2
    story.ask("keys retire", key["id"])
    story.ask("verify", "default")
    (receipts,) = story.home.glob("data/evidence/runs/default/receipts/*.parquet")
    receipts.unlink()
    assert story.ask("verify", "default", "--repair")["repaired"]["rewritten"]
    pipeline.ledger.close()
    ledger = story.home / "data" / "ledger.db"
    shutil.copy(ledger, story.home / "older.db")
    pipeline.ingest(event("c"), run="another")
    pipeline.run()
    pipeline.ledger.close()
    for file in ledger.parent.glob("ledger.db*"):
        file.unlink()
    shutil.copy(story.home / "older.db", ledger)
    assert story.ask("reconcile", "--restored")["restored"]


def a_block_of_unknown_fate(story: Story) -> None:
    """Lose the answer to a publish, then give the block up."""
    story.home.mkdir()
    pipeline, transport = flaky(story.home, "down-after")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    delete_topic(pipeline.transport, "admitted.traffic")
    pipeline.transport.create_topic("admitted.traffic", 4)
    (block,) = story.ask("reconcile", "--dry-run")["blocks"]
    assert story.ask("reconcile")["remaining"] == 1
    assert story.ask("status")["drift"]
    story.ask("quarantine discard", "--block", str(block["block"]), *WHY)


def topics_that_are_missing_and_made_again(story: Story) -> None:
    story.home.mkdir()
    assert not all(each["as_agreed"] for each in story.ask("topics check")["topics"])
    assert story.ask("topics create")["accepted"]
    transport = Pipeline(story.home, transport={"raw_partitions": 4}).transport
    delete_topic(transport, "admitted.traffic")
    transport.create_topic("admitted.traffic", 4)
    assert story.ask("topics check")["topics"][-1]["differences"]
    story.ask("topics accept", "admitted.traffic", *WHY)


def test_a_topic_on_a_log_that_keeps_each_its_own_way_is_as_described() -> None:
    contract = Contract("t", 4, Keeping(3, None, "compact"))
    found = compare(contract, Live("id", 4, Keeping(3, 1_000, "compact"))).document()

    assert differing(TopicDocument, found) == []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service over traffic with everything, which the story may change."""
    home = tmp_path_factory.mktemp("shop")
    settings = fill(home, 600, malformed=0.05, contradictions=0.05)
    count_everything(settings)
    with serving(home) as running:
        yield running


def test_every_route_answers_as_described(shop: Running) -> None:
    api, seen = described_api(), set()
    with shop.client() as client:  # refuses what is not as described
        client.event_hooks["response"].append(lambda answer: _note(api, answer, seen))
        ask_everything(client)

    assert seen == api.routes.keys()


def _note(api: DescribedApi, answer: httpx.Response, seen: set[tuple[str, str]]) -> None:
    place = api.route_of(answer.request)
    if place is not None and answer.is_success:
        seen.add(place)


def ask_everything(client: httpx.Client) -> None:
    """Ask every route for what it answers when all is well, and for its problems."""
    for path in ("/healthz", "/readyz", "/metrics", "/v1/runs", "/v1/status", "/v1/dimensions",
                 "/v1/windows", "/v1/windows?dimension=url", "/v1/runs/shop", "/v1/runs/shop/attempts"):  # fmt: skip
        assert client.get(path).is_success, path
    rows = client.get("/v1/decisions", params={"run": "shop", "limit": 5}).json()
    assert rows["next"]
    admitted = next(row for row in rows["decisions"] if row["verdict"] == "ADMITTED")
    question = {"event": admitted["event_id"], "run": "shop"}
    client.get("/v1/receipts", params=question).raise_for_status()
    top = client.get("/v1/topk", params={"dimension": "url", "window": "1d"}).json()
    client.get("/v1/trends", params={"dimension": "url", "window": "1d"}).raise_for_status()
    item = f"/v1/items/url/{quote(top['items'][0]['item'], safe='')}"
    client.get(item, params={"window": "1d"}).raise_for_status()
    client.get(item, params={"from": top["window"]}).raise_for_status()
    listed = client.get("/v1/quarantine").json()["quarantined"]
    contradiction = next(row for row in listed if row["reason"] == "PAYLOAD_MISMATCH")
    other = next(row for row in listed if row["reason"] != "PAYLOAD_MISMATCH")
    for row in (contradiction, other):
        client.get(f"/v1/quarantine/{row['id']}").raise_for_status()
    order = {"reason": "seen by hand", "choice": "keep-first"}
    place = f"/v1/quarantine/{contradiction['id']}/release"
    client.post(place, json=order).raise_for_status()
    del order["choice"]
    client.post(f"/v1/quarantine/{other['id']}/discard", json=order).raise_for_status()
    events = [json.loads(event("new")), json.loads(event("new")), "nonsense"]
    client.post("/v1/events", params={"run": "green"}, json=events[:2]).raise_for_status()
    client.post("/v1/events", params={"run": "red"}, json=events).raise_for_status()
    client.post("/v1/events", json=[]).raise_for_status()
    closes = lambda: client.post("/v1/runs/green/close", json={}).is_success  # noqa: E731
    wait_until(closes, "the evidence of what was delivered is written")
    assert client.get("/v1/proof?event=new&run=green").json()["path"] == []
    assert client.get("/v1/proof?event=new&run=red").status_code == 409
    assert client.post("/v1/runs/red/close", json={}).json()["checks"]
    assert client.get("/v1/topk").json()["errors"]
    assert client.get("/v1/receipts?event=unknown").json()["remedy"]
    for path in ("/v1/nothing", "/v1/runs/unknown", "/v1/topk?dimension=urls"):
        assert client.get(path).status_code == 404
    assert client.delete("/v1/topk").status_code == 405
    with client.stream("GET", "/v1/live", params={"dimension": "url", "beats": 1}):
        pass


@pytest.mark.parametrize("dimension", ["url", "urls"])
def test_every_part_that_a_watcher_is_told_is_as_described(dimension: str, shop: Running) -> None:
    told: dict[str, Any] = {}
    question = {"dimension": dimension, "beats": 1}
    with shop.client() as client, client.stream("GET", "/v1/live", params=question) as live:
        for line in live.iter_lines():
            word, _, rest = line.partition(": ")
            if word == "event":
                name = rest
            elif word == "data":
                told[name] = json.loads(rest)

    assert told.keys() == LIVE.keys()
    assert [differing(LIVE[name] | Trouble, document) for name, document in told.items()] == [
        []
    ] * 4


def test_every_route_is_described_but_for_pages() -> None:
    paths = {route.path for module in ROUTERS for route in module.router.routes}
    pages = {getattr(route, "path", None) for route in create_app(Settings()).routes}

    assert {path.replace(":path}", "}") for path in paths} == {
        path for _, path in described_api().routes
    }
    assert pages - {None} == PAGES


def test_a_key_that_nobody_described_and_one_that_is_missing_are_noticed() -> None:
    assert differing(Discarded, {"discarded": 1}) == []
    assert differing(Discarded, {"discarded": 1, "more": 2}) != []
    assert differing(Discarded, {}) != []
    assert differing(Books, {"runs": [{"run_id": "r"}]}) != []

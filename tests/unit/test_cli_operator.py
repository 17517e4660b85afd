"""An operator's day on the command line: quarantine, reconciliation, closing, verifying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admitone.core.decisions import BlockState
from admitone.core.errors import ServiceUnreachable
from tests.support.command_line import Cli, cli, home
from tests.support.flaky import flaky
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

__all__ = ["cli", "home"]

WHY = ("--reason", "seen by hand", "--author", "ann")


def write_evidence(folder: str) -> None:
    Pipeline(Path(folder), transport={"raw_partitions": 4}).run()


def quarantined(cli: Cli, home: str, *options: str) -> list[dict[str, Any]]:
    return cli("quarantine", "list", "--home", home, "--jsonl", *options).rows


def test_a_run_goes_from_red_to_closed_and_verified(cli: Cli, home: str) -> None:
    red = cli("close", "r1", "--home", home)
    assert red.code == 5
    assert "admitone quarantine" in red.out

    listed = quarantined(cli, home, "--run", "r1")
    assert {row["reason"] for row in listed} == {"PAYLOAD_MISMATCH", "NOT_JSON"}
    discarded = cli("quarantine", "discard", "--home", home, "--code", "NOT_JSON", *WHY, "--json")
    assert discarded.document == {"discarded": 1}
    undecided = cli("quarantine", "release", "--home", home, "--run", "r1", *WHY)
    assert undecided.code == 1
    assert "--keep-first" in undecided.err
    kept = cli(
        "quarantine", "release", "--home", home, "--run", "r1", "--keep-first", *WHY, "--json"
    )
    assert kept.document["kept_first"] == 1
    assert quarantined(cli, home) == []
    assert len(quarantined(cli, home, "--all")) == 2
    assert "DISCARDED" in cli("quarantine", "list", "--home", home, "--all").out

    write_evidence(home)
    closed = cli("close", "r1", "--home", home, "--json")
    assert (closed.code, closed.document["closed"]) == (0, True)
    assert cli("verify", "r1", "--home", home).code == 0
    (receipts,) = Path(home).glob("data/evidence/runs/r1/receipts/*.parquet")
    receipts.unlink()
    broken = cli("verify", "r1", "--home", home)
    assert broken.code == 7
    assert "receipts" in broken.out
    assert cli("verify", "r1", "--home", home, "--repair").code == 0
    assert cli("verify", "r1", "--home", home).code == 0


def test_a_delivery_is_named_by_its_id(cli: Cli, home: str) -> None:
    (mismatch,) = quarantined(cli, home, "--reason", "PAYLOAD_MISMATCH")
    released = cli("quarantine", "release", mismatch["id"], "--home", home, "--as-new", *WHY)
    assert released.code == 0
    assert "1 delivered again: ADMITTED" in released.out
    shown = cli("quarantine", "show", mismatch["id"], "--home", home, "--json").document
    assert shown["resolution"]["author"] == "ann"
    again = cli("quarantine", "release", mismatch["id"], "--home", home, "--as-new", *WHY)
    assert again.code == 1
    assert "quarantine list" in again.err


@pytest.mark.parametrize("verb", ["release", "discard"])
def test_something_must_be_named_and_a_reason_given(verb: str, cli: Cli, home: str) -> None:
    assert cli("quarantine", verb, "--home", home, *WHY).code == 2
    assert cli("quarantine", verb, "1-2", "--run", "r1", "--home", home, *WHY).code == 2
    assert cli("quarantine", verb, "--run", "r1", "--home", home).code == 2
    assert cli("quarantine", verb, "999-1", "--home", home, *WHY).code == 1


def test_reconcile_says_what_it_found_and_what_remains(cli: Cli, tmp_path: Path) -> None:
    home = str(tmp_path)
    assert cli("reconcile", "--home", home).code == 0
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"), event("b"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()

    looked = cli("reconcile", "--home", home, "--dry-run", "--json")
    assert looked.code == 6
    assert [block["found"] for block in looked.document["blocks"]] == ["absent"]
    assert cli("reconcile", "--home", home, "--dry-run").code == 6
    resolved = cli("reconcile", "--home", home)
    assert resolved.code == 0
    assert "published late" in resolved.out
    assert cli("reconcile", "--home", home, "--json").document == {
        "restored": [],
        "blocks": [],
        "remaining": 0,
    }
    assert pipeline.verdicts("a") == [("ADMITTED", None)]


def test_a_block_that_is_on_the_log_is_settled_and_not_given_up(cli: Cli, tmp_path: Path) -> None:
    pipeline, _ = flaky(tmp_path, "down-after")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    (block,) = pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])

    done = cli(
        "quarantine", "discard", "--block", str(block.block_id), "--home", str(tmp_path), *WHY
    )
    assert (done.code, done.out) == (
        0,
        "block 1 was found on the log: its 1 deliveries are settled, nothing is given up\n",
    )
    assert pipeline.verdicts("a") == [("ADMITTED", None)]


def test_a_block_of_unknown_fate_is_given_up(cli: Cli, tmp_path: Path) -> None:
    home = str(tmp_path)
    pipeline, transport = flaky(tmp_path, "down-after")
    pipeline.ingest(event("a"))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    delete_topic(pipeline.transport, "admitted.traffic")
    pipeline.transport.create_topic("admitted.traffic", 4)

    remaining = cli("reconcile", "--home", home, "--json")
    assert remaining.code == 6
    (block,) = remaining.document["blocks"]
    given_up = cli("quarantine", "discard", "--block", str(block["block"]), "--home", home, *WHY)
    assert (given_up.code, given_up.out) == (0, "block 1 given up with its 1 deliveries\n")
    assert cli("reconcile", "--home", home).code == 0
    assert pipeline.verdicts("a") == [("QUARANTINED", "IDENTITY_RETRACTED")]
    assert cli("quarantine", "discard", "--block", "7", "--home", home, *WHY).code == 1

"""The command line: names, exit codes, documents, and errors that name their remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from admitone.core.errors import Fenced, ServiceUnreachable
from tests.support.command_line import Cli, cli, commands, home
from tests.support.pipeline import Pipeline, event

__all__ = ["cli", "home"]


def test_help_lists_every_command(cli: Cli) -> None:
    done = cli("--help")
    for name in (
        "init demo generate ingest run status books decisions receipt quarantine close top item windows"
    ).split():
        assert f"\n  {name}" in done.out


def test_init_writes_a_configuration_once(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", "--home", str(tmp_path)).code == 0
    again = cli("--home", str(tmp_path), "init")
    assert again.code == 3
    assert "is there already" in again.err


def test_home_is_taken_before_and_after_the_verb(cli: Cli, home: str) -> None:
    assert cli("--home", home, "books", "--json").out == cli("books", "--json", "--home", home).out


def test_a_table_that_no_terminal_shows_is_as_wide_as_the_variable_says(
    cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def width() -> int:
        return max(len(line) for line in cli("books", "--home", home).out.splitlines())

    monkeypatch.delenv("COLUMNS", raising=False)
    assert 80 < width() <= 140
    monkeypatch.setenv("COLUMNS", "80")
    assert width() <= 80


def test_every_command_takes_a_home_after_its_verb() -> None:
    without = [
        name
        for name, command in commands().items()
        if not any("--home" in parameter.opts for parameter in command.params)
    ]
    assert without == []


def test_books_balance(cli: Cli, home: str) -> None:
    (run,) = cli("books", "--json", "--home", home).document["runs"]
    assert {key: run[key] for key in ("run_id", "deliveries", "admitted", "duplicates", "quarantined")} == {
        "run_id": "r1", "deliveries": 5, "admitted": 2, "duplicates": 1, "quarantined": 2,
    }  # fmt: skip
    assert {"replayed", "ambiguous", "in_flight", "re_read", "balanced", "partitions"} <= set(run)
    assert {"producer_id", "topic", "partition"} <= set(run["partitions"][0])


def test_books_that_do_not_balance_exit_with_seven(cli: Cli, home: str) -> None:
    import sqlite3

    db = sqlite3.connect(Path(home) / "data" / "ledger.db")
    db.execute(
        "UPDATE block SET deliveries = deliveries + 1, runs = '{\"r1\": 9}' WHERE block_id = 1"
    )
    db.commit()
    db.close()
    done = cli("books", "--home", home)
    assert done.code == 7
    assert "NO" in done.out


def test_decisions_can_be_asked_by_every_key(cli: Cli, home: str) -> None:
    rows = cli("decisions", "--jsonl", "--home", home).rows
    first = next(row for row in rows if row["event_id"] == "e1" and row["verdict"] == "ADMITTED")
    assert set(first) >= {
        "run_id", "event_class", "event_id", "verdict", "reason", "source", "bus", "identity",
        "payload_hash", "first", "decided_at",
    }  # fmt: skip
    source, bus = first["source"], first["bus"]
    assert bus["offset_kind"] == "folder"
    for arguments in (
        ("--identity", first["identity"], "--verdict", "ADMITTED"),
        ("--source", f"{source['partition']}:{source['offset']}"),
        ("--source", f"{source['producer_id']}:{source['partition']}:{source['offset']}"),
        ("--bus", f"{bus['topic']}:{bus['partition']}:{bus['offset']}"),
        ("--event", "e1", "--limit", "1"),
        ("--run", "r1", "--event", "e1", "--until", "2999-01-01T00:00:00Z", "--limit", "1"),
    ):
        assert cli("decisions", "--jsonl", "--home", home, *arguments).rows == [first]
    for option in ("--code", "--reason"):
        assert len(cli("decisions", "--jsonl", "--home", home, option, "NOT_JSON").rows) == 1
        assert (
            len(cli("quarantine", "list", "--jsonl", "--home", home, option, "NOT_JSON").rows) == 1
        )
    views = cli("decisions", "--jsonl", "--home", home, "--class", first["event_class"]).rows
    assert [row["event_id"] for row in views] == ["e1", "e1", "e1", "e2"]
    assert cli("decisions", "--jsonl", "--home", home, "--class", "purchase").rows == []
    assert cli("decisions", "--jsonl", "--home", home, "--since", "2999-01-01T00:00:00Z").rows == []
    assert cli("decisions", "--jsonl", "--home", home, "--run", "other").rows == []


def test_a_receipt_shows_the_ticket_and_every_delivery(cli: Cli, home: str) -> None:
    document = cli("receipt", "e1", "--json", "--home", home).document
    assert document["receipt"]["verdict"] == "ADMITTED"
    assert [row["verdict"] for row in document["deliveries"]] == [
        "ADMITTED",
        "DUPLICATE",
        "QUARANTINED",
    ]
    assert "e1" in cli("receipt", "e1", "--home", home).out


def test_quarantine_shows_both_payloads(cli: Cli, home: str) -> None:
    listed = cli("quarantine", "list", "--json", "--home", home).document["quarantined"]
    assert {row["reason"] for row in listed} == {"NOT_JSON", "PAYLOAD_MISMATCH"}
    contradiction = next(row for row in listed if row["reason"] == "PAYLOAD_MISMATCH")
    shown = cli("quarantine", "show", contradiction["id"], "--json", "--home", home).document
    assert json.loads(shown["envelope"])["payload"]["pageId"] == "other"
    assert "pageId" not in json.loads(shown["first_envelope"])["payload"]
    assert "admitted first" in cli("quarantine", "show", contradiction["id"], "--home", home).out


def test_closing_a_red_run_lists_the_blockers_and_exits_with_five(cli: Cli, home: str) -> None:
    done = cli("close", "r1", "--home", home)
    assert done.code == 5
    assert "open contradictions" in done.out
    assert "admitone quarantine list --run r1 --reason NOT_JSON" in done.out
    document = cli("close", "r1", "--json", "--home", home)
    assert (document.code, document.document["gate"]) == (5, "red")


def test_closing_a_clean_run_writes_its_artifact(cli: Cli, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    pipeline.run()
    assert cli("close", "default", "--dry-run", "--home", str(tmp_path)).code == 0
    assert pipeline.ledger.runs() == {"default": "OPEN"}
    closed = cli("close", "default", "--json", "--home", str(tmp_path)).document
    assert closed["closed"]
    assert closed["artifact"]["books"]["admitted"] == 1
    assert pipeline.ledger.runs() == {"default": "CLOSED"}


def test_ingest_says_how_many_and_where(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join([event("e1"), b"", event("e2"), event("e1")]) + b"\n")
    document = cli("ingest", str(file), "--json", "--home", str(tmp_path)).document
    assert (document["topic"], document["deliveries"], document["blank_lines"]) == ("raw", 3, 1)
    assert sum(document["partitions"].values()) == 3


def test_status_shows_the_lag(cli: Cli, home: str, tmp_path: Path) -> None:
    document = cli("status", "--json", "--home", home).document
    assert document["running"] is None
    assert document["undecided"] == 0
    assert document["uncounted"] == 2
    assert {"query", "topic", "partition", "done", "end", "lag"} == set(document["partitions"][0])


def test_a_person_gets_tables(cli: Cli, home: str) -> None:
    for command, told in (
        ("books", ("r1", "balanced")),
        ("decisions", ("e1", "ADMITTED")),
        ("quarantine list", ("e1", "PAYLOAD_MISMATCH")),
        ("status", ("raw", "boundary")),
    ):
        done = cli(*command.split(), "--home", home)
        assert done.code == 0
        assert all(words in done.out for words in told), done.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["books", "--home", "/nowhere/at/all"], 3, "There is no folder"),
        (["receipt", "unknown"], 1, "No delivery of event 'unknown'"),
        (["close", "unknown"], 1, "There is no run 'unknown'"),
        (["quarantine", "show", "x"], 1, "admitone quarantine list"),
        (["decisions", "--source", "x"], 2, "PARTITION:OFFSET"),
        (["decisions", "--bus", "x"], 2, "TOPIC:PARTITION:OFFSET"),
        (["decisions", "--bus", "t:0:100000000000000000000"], 2, "TOPIC:PARTITION:OFFSET"),
        (["decisions", "--identity", "zz"], 2, "64 hexadecimal digits"),
        (["decisions", "--since", "yesterday"], 2, "such as 2026"),
        (["decisions", "--verdict", "MAYBE"], 2, "MAYBE"),
        (["ingest", "/nowhere.jsonl"], 1, "Cannot read"),
        (["run", "--trigger", "often"], 3, "--trigger"),
        (["top", "--dimension", "url"], 1, "admitone run"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_errors_say_what_came_and_what_to_try(
    cli: Cli, home: str, arguments: list[str], code: int, said: str
) -> None:
    with_home = arguments if "--home" in arguments else [*arguments, "--home", home]
    done = cli(*(arguments if arguments == ["nonsense"] else with_home))
    assert done.code == code
    assert said in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_a_bad_configuration_exits_with_three(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text("[topk]\nwidht = 3\n")
    done = cli("books", "--home", str(tmp_path))
    assert done.code == 3
    assert "did you mean 'width'" in done.err


def test_hostile_names_are_shown_as_they_are(cli: Cli, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(
        event("[/x]", runId="[red]r[/]"), event("[/x]", {"pageId": "y"}, runId="[red]r[/]")
    )
    pipeline.run()
    for command in (
        ["books"],
        ["decisions"],
        ["quarantine", "list"],
        ["status"],
        ["receipt", "[/x]"],
    ):
        done = cli(*command, "--home", str(tmp_path))
        assert done.code == 0
        assert "[red]r[/]" in done.out
    assert "[red]r[/]" in cli("close", "[red]r[/]", "--home", str(tmp_path)).out


def test_a_damaged_store_is_reported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ledger.db").write_bytes(b"not a database at all, certainly" * 200)
    done = cli("books", "--home", str(tmp_path))
    assert done.code == 7
    assert "damaged" in done.err


def test_the_environment_cannot_move_the_home_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMITONE_HOME", "/nowhere")
    assert cli("books", "--json", "--home", str(tmp_path)).code == 0
    monkeypatch.setenv("ADMITONE_PIPELINE", "foo")
    assert cli("books", "--home", str(tmp_path)).code == 3


def test_an_empty_home_says_what_to_do_next(cli: Cli, tmp_path: Path) -> None:
    assert "admitone run" in cli("books", "--home", str(tmp_path)).err


def test_the_demo_refuses_fewer_events_than_it_can_tell_its_story_with(
    cli: Cli, tmp_path: Path
) -> None:
    refused = cli("demo", "--events", "1999", "--home", str(tmp_path / "demo"))
    assert refused.code == 2
    assert "2000" in refused.err
    assert not (tmp_path / "demo").exists()
    assert "fewer are over before the pipeline can be killed" in " ".join(
        cli("demo", "--help").out.split()
    )


def test_the_demo_prints_its_plan_before_it_starts_anything(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def start(*_: object, **__: object) -> NoReturn:
        said.append(capfd.readouterr().err)
        raise ServiceUnreachable("The first process is started.")

    monkeypatch.setattr("admitone.demo.story._start", start)
    monkeypatch.setattr("admitone.demo.story.generate", start)
    assert cli("demo", "--home", str(tmp_path)).code == 4
    (plan,) = said
    assert plan.startswith("50,000 deliveries")
    assert "It takes about 70 seconds" in plan


def test_a_command_whose_pipeline_another_driver_took_over_ends_with_8(
    cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fenced(*_: object) -> None:
        raise Fenced("Another admitone process took over this home folder.", "let it run")

    monkeypatch.setattr("admitone.ops.run.run", fenced)
    done = cli("run", "--home", home)
    assert done.code == 8
    assert "took over" in done.err

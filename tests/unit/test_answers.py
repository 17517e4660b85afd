"""TOP-9, TOP-11: what an answer says, and how a wrong question is refused."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from admitone.analytics.answers import SketchAnswers, open_answers
from admitone.analytics.open import counting_parameters, item_rules, open_sketch_store
from admitone.analytics.port import CountedBatch, Delta, PartitionRead, SourceProgress
from admitone.cli import answers as commands
from admitone.core.errors import NotFound
from admitone.core.sketches import WindowSketch
from admitone.core.windows import MINUTE_MS, parse_window
from admitone.settings import Settings, load_settings

T0 = parse_window("minute_202611151000").start_ms


def delta(
    settings: Settings, name: str, minute: int, counts: dict[str, int], late: int = 0
) -> Delta:
    sketch = WindowSketch(counting_parameters(settings).sketch)
    sketch.update(counts)
    sketch.late, sketch.updated_at = late, 1_763_200_000_123
    return Delta(name, T0 + minute * MINUTE_MS, sketch.to_bytes())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    store.commit(
        CountedBatch(
            reads=[PartitionRead("admitted.traffic", "T", 0, -1, 99, 100, 0, 0)],
            sources={(1, 0): SourceProgress(T0 + 70 * MINUTE_MS, T0)},
            deltas=[
                delta(settings, "url", 0, {"/shoes": 60, "/hats": 30, "7": 10}, late=4),
                delta(settings, "url|deviceType=mobile", 0, {"/shoes": 20}),
                delta(settings, "url", 70, {"/hats": 5}),
            ],
            counted_at=1,
        )
    )
    store.close()
    return tmp_path


@pytest.fixture
def answers(home: Path) -> SketchAnswers:
    return open_answers(load_settings(home))


def test_an_answer_states_bounds_totals_freshness_and_completeness(answers):
    answer = answers.top("url", "hour_2026111510", k=2)

    assert list(answer) == [
        *("window", "dimension", "where", "item_type", "k", "total", "distinct", "complete"),
        *("late", "updated_at", "error_bound", "parameters", "source", "items"),
    ]
    assert answer["items"] == [
        {"rank": 1, "item": "/shoes", "estimate": 60, "lower": 60, "upper": 60},
        {"rank": 2, "item": "/hats", "estimate": 30, "lower": 30, "upper": 30},
    ]
    assert (answer["total"], answer["late"], answer["distinct"]) == (100, 4, 3)
    assert answer["item_type"] == "url"
    assert answer["error_bound"] == 0.0
    assert answer["updated_at"] == "2025-11-15T09:46:40.123Z"
    assert answer["parameters"]["width"] == 1024
    assert answer["source"] == {"revision": 1, "counted_up_to": {"admitted.traffic": {"0": 99}}}


def test_a_window_is_complete_when_the_slowest_partition_has_passed_it(answers):
    complete = {line["window"]: line["complete"] for line in answers.windows()}

    assert complete["minute_202611151000"]
    assert complete["hour_2026111510"]
    assert not complete["minute_202611151110"]
    assert not complete["day_20261115"]
    assert not complete["global"]


@pytest.mark.parametrize(
    ("alias", "window", "total"),
    [
        ("1m", "minute_202611151110", 5),
        ("1h", "hour_2026111511", 5),
        ("1d", "day_20261115", 105),
        ("1w", "week_202646", 105),
        ("1mo", "month_202611", 105),
        ("all", "global", 105),
    ],
)
def test_an_alias_is_the_newest_window_of_that_size(answers, alias, window, total):
    answer = answers.top("url", alias)

    assert (answer["window"], answer["total"]) == (window, total)


def test_a_grouped_list_is_asked_for_by_attribute_and_value(answers):
    answer = answers.top("url", "all", "deviceType=mobile")

    assert answer["where"] == "deviceType=mobile"
    assert answer["total"] == 20


def test_a_list_that_is_empty_in_a_window_is_an_answer(answers):
    answer = answers.top("productId", "1h")

    assert (answer["total"], answer["items"], answer["error_bound"]) == (0, [], 0.0)


@pytest.mark.parametrize(
    ("question", "explanation"),
    [
        (("urls", "1h", None), "did you mean 'url'"),
        (("url", "1h", "device=mobile"), "did you mean 'deviceType'"),
        (("url", "1h", "deviceType=mobil"), "did you mean 'mobile'"),
        (("url", "hour_2026111515", None), "hour_2026111510 to hour_2026111511"),
        (("url", "yesterday", None), "is no window"),
    ],
)
def test_a_wrong_question_is_told_what_there_is(answers, question, explanation):
    with pytest.raises(NotFound, match=explanation):
        answers.top(*question)


def test_any_item_has_bounds_in_any_window(answers):
    found = answers.item("url", "7", "all")
    absent = answers.item("url", "/nothing", "hour_2026111510")

    assert (found["lower"], found["estimate"], found["upper"]) == (10, 10, 10)
    assert (absent["lower"], absent["upper"], absent["total"]) == (0, 0, 100)
    with pytest.raises(NotFound, match="did you mean 'product'"):
        answers.item("produkt", "7")


def test_a_history_has_one_answer_for_each_window_there_is(answers):
    found = answers.history("url", "/hats", "hour_2026111500", "hour_2026111523")

    assert [(line["window"], line["upper"]) for line in found] == [
        ("hour_2026111510", 30),
        ("hour_2026111511", 5),
    ]
    with pytest.raises(NotFound, match="windows of one size"):
        answers.history("url", "/hats", "hour_2026111510", "day_20261115")


def test_before_the_first_count_there_is_no_answer_and_no_file(tmp_path):
    with pytest.raises(NotFound, match="Nothing has been counted yet"):
        open_answers(load_settings(tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_says_so(tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    with pytest.raises(NotFound, match="Nothing has been counted yet"):
        SketchAnswers(store, item_rules(settings)).windows()


@pytest.fixture
def app() -> typer.Typer:
    application = typer.Typer()
    for command in (commands.top, commands.item, commands.windows):
        application.command()(command)
    return application


def test_the_command_line_prints_one_document_or_a_table(app, home):
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--home", str(home)], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    document = orjson.loads(
        run("top", "--dimension", "url", "--window", "all", "-k", "1", "--json")
    )
    assert [line["item"] for line in document["items"]] == ["/shoes"]
    assert "/hats" in run("top", "--dimension", "url", "--window", "1d")
    assert orjson.loads(run("item", "url", "/hats", "--window", "all", "--json"))["upper"] == 35
    assert "hour_2026111510" in run("item", "url", "/hats", "--from", "hour_2026111510")
    assert orjson.loads(run("windows", "--json"))["windows"][-1]["window"] == "global"
    assert "minute_202611151110" in run("windows")

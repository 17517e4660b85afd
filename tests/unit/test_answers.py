"""TOP-9, TOP-11: what an answer says, and how a wrong question is refused."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner

from admitone.analytics import counting_parameters, item_rules, open_sketch_store
from admitone.analytics.port import CountedBatch, Delta, PartitionRead
from admitone.analytics.store_state import SourceProgress
from admitone.cli import answer_commands as commands
from admitone.core.errors import NotFound
from admitone.core.sketches import WindowSketch
from admitone.core.windows import MINUTE_MS, parse_window
from admitone.results import open_answers
from admitone.results.answers import Answers
from admitone.settings import Settings, load_settings
from tests.support.counted import Counts

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
def answers(home: Path) -> Answers:
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
    assert answer["source"] == {
        "kept_in": "sketches",
        "revision": 1,
        "counted_up_to": {"admitted.traffic": {"0": 99}},
    }


def test_a_window_is_complete_when_the_slowest_partition_has_passed_it(answers):
    complete = {line["window"]: line["complete"] for line in answers.windows()["windows"]}

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
    (newest,) = answers.history("url", "/hats", "hour_2026111500", "hour_2026111523", most=1)
    assert newest["window"] == "hour_2026111511"
    with pytest.raises(NotFound, match="windows of one size"):
        answers.history("url", "/hats", "hour_2026111510", "day_20261115")


def test_a_trend_says_what_rose_since_the_window_before_and_by_how_much_for_certain(answers):
    answer = answers.trend("url", "hour_2026111511")

    assert (answer["window"], answer["previous"]) == ("hour_2026111511", "hour_2026111510")
    assert (answer["previous_total"], answer["total"]) == (100, 5)
    assert (answer["previous_complete"], answer["complete"]) == (True, False)
    assert answer["items"] == []
    risen = answers.trend("url", "minute_202611151000")
    assert risen["items"][0] == {
        "rank": 1,
        "item": "/shoes",
        "change": 60,
        "lower": 60,
        "upper": 60,
        "now": 60,
        "before": 0,
    }
    assert [line["item"] for line in risen["items"]] == ["/shoes", "/hats", "7"]
    assert [line["item"] for line in answers.trend("url", "minute_202611151000", k=1)["items"]] == [
        "/shoes"
    ]


def test_a_trend_needs_a_window_before(answers):
    with pytest.raises(NotFound, match="Nothing comes before global"):
        answers.trend("url", "all")


def test_a_trend_does_not_take_what_is_no_longer_kept_for_nothing(tmp_path):
    counts = Counts(tmp_path, {"topk": {"keep_minutes": 60_000 * 30}})
    counts.add(0, {"url": {"/a": 5}})
    counts.add(1, {"url": {"/a": 9}})
    counts.add(31, {"url": {"/a": 1}})
    answers = Answers(counts.store, item_rules(counts.settings))

    with pytest.raises(NotFound, match="minute_202611151000 is no longer kept"):
        answers.trend("url", "minute_202611151001")


def test_windows_can_be_listed_with_what_a_list_amounts_to_in_them(answers):
    document = answers.windows("url", size="1h")
    found = document["windows"]

    assert (document["dimension"], document["where"]) == ("url", None)
    assert [(line["window"], line["total"], line["late"], line["distinct"]) for line in found] == [
        ("hour_2026111510", 100, 4, 3),
        ("hour_2026111511", 5, 0, 1),
    ]
    assert found[0]["kept_in"] == "sketches"
    assert found[0]["updated_at"] == "2025-11-15T09:46:40.123Z"
    assert answers.windows("url", "deviceType=mobile", "all")["windows"][0]["total"] == 20
    with pytest.raises(NotFound, match="is no size"):
        answers.windows("url", size="2h")


def test_an_answer_says_when_a_counter_has_stopped_and_its_bounds_still_hold(tmp_path):
    counts = Counts(tmp_path, {"topk": {"k": 1, "width": 16, "depth": 1}})
    many = {f"light {number}": 1 for number in range(200)}
    for _ in range(3):
        counts.add(0, {"url": {"heavy": (1 << 31) - 1, **many}})
    answers = Answers(counts.store, item_rules(counts.settings))
    true = 3 * ((1 << 31) - 1)
    heavy, light = (answers.item("url", item, "1h") for item in ("heavy", "light 7"))

    assert heavy["parameters"]["saturated"]
    assert answers.top("url", "1h")["parameters"]["saturated"]
    assert heavy["lower"] <= true <= heavy["upper"] <= heavy["total"] == true + 600
    assert light["lower"] <= 3 <= light["upper"]
    assert answers.item("url", "heavy", "1d")["parameters"]["counter_bits"] == 64


def test_before_the_first_count_there_is_no_answer_and_no_file(tmp_path):
    with pytest.raises(NotFound, match="Nothing has been counted yet"):
        open_answers(load_settings(tmp_path)).windows()

    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_says_so(tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    with pytest.raises(NotFound, match="Nothing has been counted yet"):
        Answers(store, item_rules(settings)).windows()


@pytest.fixture
def app() -> typer.Typer:
    application = typer.Typer()
    for command in (commands.top, commands.item, commands.trend, commands.windows):
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
    moved = run("item", "url", "/hats", "--from", "hour_2026111510")
    assert "hour_2026111510" in moved
    assert "different" in moved
    assert "Count-Min 1024 x 5, K = 100" in moved
    assert orjson.loads(run("windows", "--json"))["windows"][-1]["window"] == "global"
    assert "minute_202611151110" in run("windows")
    risen = orjson.loads(
        run("trend", "--dimension", "url", "--window", "minute_202611151000", "--json")
    )
    assert risen["items"][0]["change"] == 60
    assert "/hats" in run("trend", "--dimension", "url", "--window", "minute_202611151000")
    assert (
        orjson.loads(run("windows", "--dimension", "url", "--json"))["windows"][0]["total"] == 100
    )
    assert "100" in run("windows", "--dimension", "url", "--size", "1m")

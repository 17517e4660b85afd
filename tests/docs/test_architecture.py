"""ARCHITECTURE.md draws the house as it is: its rooms, the way of an event through them, the crash points."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from xml.etree import ElementTree

from admitone.infra.crash_points import BOUNDARY_POINTS
from tests.support.repository import PACKAGE, ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
NO_ROOM_OF_AN_EVENT = {"cli", "demo", "core", "infra", "settings", "governance", "simulation"}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def ways() -> list[list[tuple[str, set[str]]]]:
    """Return each numbered list of the way: the name of each step's room, and the rooms of its files."""
    lists = re.split(r"(?m)^(?=1\. )", section("The way of one event"))[1:]
    steps = [re.split(r"(?m)^\d+\. ", each.partition("\n\n")[0])[1:] for each in lists]
    return [
        [
            (step.partition("**: ")[0].strip("*"), set(re.findall(r"`(\w+)/[\w/]+\.py`", step)))
            for step in way
        ]
        for way in steps
    ]


def test_the_way_of_an_event_stays_in_a_room_and_never_goes_back_to_it() -> None:
    assert len(ways()) == 2
    for way in ways():
        rooms = [room for room, _ in way]
        assert len(rooms) >= 5
        assert len(set(rooms)) == len(rooms)
        assert [(room, files) for room, files in way if files != {room}] == []


def test_the_way_of_an_event_has_every_room_it_goes_through() -> None:
    rooms = {file.name for file in PACKAGE.iterdir() if (file / "__init__.py").exists()}
    assert {room for way in ways() for room, _ in way} == rooms - NO_ROOM_OF_AN_EVENT


def test_the_source_tree_has_the_rooms_in_the_order_in_which_they_may_import() -> None:
    drawn = re.findall(r"(?m)^    (\w+)/ ", section("Source tree"))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        each["layers"] for each in contracts["contracts"] if each.get("containers") == ["admitone"]
    )
    levels = {room: level for level, row in enumerate(layers) for room in row.split(" | ")}
    assert sorted(drawn) == sorted(levels)
    assert [levels[room] for room in drawn] == sorted(levels.values())


def test_no_two_rooms_have_a_file_of_the_same_name() -> None:
    """Ports are the exception, and twins, which are in one room."""
    rooms = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        rooms[file.name].add(file.relative_to(PACKAGE).parts[0])
    assert {name for name, found in rooms.items() if len(found) > 1} == {"__init__.py", "port.py"}


def test_the_picture_of_the_five_steps_has_every_crash_point_of_the_protocol() -> None:
    picture = ElementTree.parse(ROOT / "docs/images/admission.svg")
    texts = ["".join(each.itertext()).strip() for each in picture.findall(".//{*}text")]
    assert sorted(text for text in texts if text in BOUNDARY_POINTS) == sorted(BOUNDARY_POINTS)
    prefixes = tuple({f"{point.partition('.')[0]}." for point in BOUNDARY_POINTS})
    assert [
        text for text in texts if text.startswith(prefixes) and text not in BOUNDARY_POINTS
    ] == []
    assert [step for step in "12345" if step not in texts] == []


def test_benchmarks_import_servers_and_nothing_else_of_the_tests() -> None:
    files = [*(ROOT / "benchmarks").glob("*.py")]
    found = {
        (file.name, module)
        for file in files
        for module in re.findall(r"(?m)^\s*(?:from|import) (tests[\w.]*)", file.read_text())
    }
    assert len(found) > 10
    assert [each for each in sorted(found) if not each[1].startswith("tests.servers.")] == []


def test_no_test_module_imports_from_another() -> None:
    imports = re.compile(r"(?m)^\s*(?:from|import) (tests\.(?:\w+\.)*test_\w+)")
    files = [*(ROOT / "tests").rglob("*.py")]
    assert len(files) > 100
    assert [
        (file.name, imports.findall(file.read_text()))
        for file in files
        if imports.search(file.read_text())
    ] == []

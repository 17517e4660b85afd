"""A page of Markdown as what its reader does, step by step: the indented blocks, told apart by how they begin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

INDENT = "    "
PROMPT = "$ "


class Kind(StrEnum):
    """What a reader does with a step."""

    COMMAND = "command"
    CONFIGURATION = "configuration"
    PYTHON = "python"
    SQL = "sql"
    PICTURE = "picture"
    OUTPUT = "output"


_BEGINNINGS = {
    Kind.COMMAND: r"([A-Z_]+=\S+ )?(admitone|mkdir|cat|curl|redis-cli|python|export|make|\S*/bin/\S+)\s",
    Kind.CONFIGURATION: r"\[\[?[\w.]+\]\]?\s*(#|$)",
    Kind.PYTHON: r"(from|import|def) |\w+ = |\w+(\.\w+)*\(",
    Kind.SQL: r"(SELECT|GRANT) ",
}
_EXIT_CODE = re.compile(r"#.*\bexits with (\d+)")
_COMMENT = re.compile(r"\s+# .*")
_HEREDOC = re.compile(r"<<(\w+)")


class UnknownBlock(ValueError):
    """A block that is neither something to do nor what a command printed."""


@dataclass(slots=True)
class Step:
    """One command, snippet or picture of a page, and what the page says that it prints."""

    line: int
    kind: Kind
    text: str
    says: list[str] = field(default_factory=list)

    @property
    def what(self) -> str:
        """Return what is to be done, without the comment behind it."""
        return _COMMENT.sub("", self.text)

    @property
    def exit_code(self) -> int:
        """Return the code that a comment beside the command names."""
        named = _EXIT_CODE.search(self.text)
        return int(named[1]) if named else 0


def steps_of(page: str) -> list[Step]:
    """Return what a page has in its indented blocks, in order; whatever is printed is with its command."""
    steps: list[Step] = []
    for line, block in _blocks(page):
        made = _transcript(line, block) if block.startswith(PROMPT) else _parts(line, block)
        for step in made:
            if step.kind is not Kind.OUTPUT:
                steps.append(step)
            elif steps and steps[-1].kind is Kind.COMMAND:
                steps[-1].says += step.text.splitlines()
            else:
                raise UnknownBlock(f"line {step.line}: nothing prints this: {step.text}")
    return steps


def printed_as_said(says: list[str], printed: str) -> bool:
    """Tell whether a command printed what its page says, except for space, rules, and what `...` stands for."""
    places = re.split(r"\.\.\.|…", _plain("\n".join(says)))
    wanted = ".*".join(re.escape(place.strip()) for place in places)
    return re.search(wanted, _plain(printed)) is not None


def with_settings(file: Path, block: str) -> None:
    """Write settings into a file as an editor would: over those of the same name, else into or behind its tables."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    table = ""
    for line in (text for text in block.splitlines() if text.strip()):
        if line.startswith("["):
            table = line.partition("#")[0].strip()
            if table.startswith("[[") or not any(_is_table(each, table) for each in lines):
                lines += ["", table]
        else:
            _set(lines, table, line)
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _set(lines: list[str], table: str, setting: str) -> None:
    """Put a setting into the last table of that name."""
    name = setting.partition("=")[0].strip()
    start = max((at for at, each in enumerate(lines) if _is_table(each, table)), default=-1) + 1
    end = next((at for at in range(start, len(lines)) if lines[at].startswith("[")), len(lines))
    for at in range(start, end):
        if lines[at].partition("=")[0].strip() == name:
            lines[at] = setting
            return
    lines.insert(start, setting)


def _is_table(line: str, table: str) -> bool:
    return line.partition("#")[0].strip() == table


def _plain(text: str) -> str:
    return " ".join(text.replace("─", " ").split())


def _blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line of each indented block, and its text."""
    block: list[str] = []
    for number, line in enumerate([*page.splitlines(), "end"], 1):
        if line.startswith("```"):
            raise UnknownBlock(f"line {number}: blocks are indented")
        if line.startswith(INDENT) or (block and not line.strip()):
            block.append(line.removeprefix(INDENT))
        elif block:
            yield number - len(block), "\n".join(block).rstrip()
            block = []


def _transcript(line: int, block: str) -> Iterator[Step]:
    """Yield each command behind a prompt, with what was printed up to the next prompt."""
    for number, text in enumerate(block.splitlines(), line):
        if text.startswith(PROMPT):
            yield Step(number, Kind.COMMAND, text.removeprefix(PROMPT))
        elif text.strip():
            yield Step(number, Kind.OUTPUT, text)


def _parts(line: int, block: str) -> Iterator[Step]:
    """Yield the steps of a block whose parts are separated by blank lines."""
    numbered = list(enumerate(block.splitlines(), line))
    for blank, group in groupby(numbered, lambda each: not each[1].strip()):
        if not blank:
            part = list(group)
            yield from _part(part[0][0], [text for _, text in part])


def _part(line: int, texts: list[str]) -> Iterator[Step]:
    kind = _kind(texts)
    if kind is not Kind.COMMAND:
        yield Step(line, kind, "\n".join(texts))
        return
    while texts:
        length = _length(texts)
        yield Step(line, kind, "\n".join(texts[:length]))
        line, texts = line + length, texts[length:]


def _kind(texts: list[str]) -> Kind:
    if any("──►" in text for text in texts):
        return Kind.PICTURE
    found = (kind for kind, begins in _BEGINNINGS.items() if re.match(begins, texts[0] + "\n"))
    return next(found, Kind.OUTPUT)


def _length(texts: list[str]) -> int:
    """Return how many lines the first command has: it may have a text behind it, or go on in the next line."""
    if document := _HEREDOC.search(texts[0]):
        return texts.index(document[1]) + 1
    return next(at for at, text in enumerate(texts, 1) if not text.endswith("\\"))

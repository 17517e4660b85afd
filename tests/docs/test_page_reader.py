"""Who does what the pages say notices what is wrong with them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.page_reader import Reader, Wrong
from tests.support.page_steps import UnknownBlock, printed_as_said, steps_of, with_settings


def test_a_block_nobody_knows_is_noticed() -> None:
    with pytest.raises(UnknownBlock, match="line 3"):
        steps_of("Do this:\n\n    frobnicate the ledger\n")
    with pytest.raises(UnknownBlock, match="line 1"):
        steps_of("```\nadmitone books\n```\n")
    with pytest.raises(UnknownBlock, match="line 3"):
        steps_of("    [ledger]\n\n    20 decided\n")


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("    mkdir one\n    frobnicate two\n", "exit code 127"),
        ("    admitone books --runs monday\n", "exit code 2"),
        ("    mkdir one    # exits with 5\n", "exit code 0 instead of 5"),
        ("    $ false\n    $ echo $?\n    0\n", "the page says"),
        ("    $ echo 14 decided\n    15 decided\n", "14 decided"),
        ("    [ledger]\n    adress = 'sqlite:here'\n", "unknown key ledger.adress"),
        ("    import admitone\n    admitone.frobnicate()\n", "frobnicate"),
    ],
)
def test_a_page_that_does_something_else_is_noticed(block: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with pytest.raises(Wrong, match=re.escape(words)):
        Reader().read("page.md", steps_of(block), folder)


def test_settings_are_written_where_an_editor_would_write_them(tmp_path: Path) -> None:
    file = tmp_path / "admitone.toml"
    file.write_text("[one]   # first\na = 1\nb = 2\n\n[two]\na = 1\n\n[[many]]\na = 1\n")
    with_settings(file, "[two]\na = 5\nc = 6\n\n[[many]]\na = 7\n\n[three]\na = 8")
    assert tomllib.loads(file.read_text()) == {
        "one": {"a": 1, "b": 2}, "two": {"a": 5, "c": 6}, "many": [{"a": 1}, {"a": 7}], "three": {"a": 8},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("says", "printed", "same"),
    [
        (["a  1", "b  2"], "x\na 1\n──────\n\nb    2\ny", True),
        (["a ...", "c 3"], "a 1\nb 2\nc 3", True),
        (["as of … and"], "as of now and", True),
        (["a 1", "c 3"], "a 1\nb 2\nc 3", False),
        (["b 2", "a 1"], "a 1\nb 2", False),
    ],
)
def test_output_is_compared_but_for_space_and_what_is_left_out(
    says: list[str], printed: str, same: bool
) -> None:
    assert printed_as_said(says, printed) is same

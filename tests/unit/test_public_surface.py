"""The names users import, and what importing costs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import admitone
from admitone.core.errors import AdmitoneError

SURFACE = {
    "AdmitoneError", "AmbiguityRemains", "Answers", "Boundary", "ConfigurationError", "Fenced", "IntegrityError",
    "Ledger", "LedgerReader", "MarkMoved", "NotFound", "RunIsRed", "ServiceUnreachable", "Settings",
    "StreamMetadata", "Transport", "aggregate_partitions", "analytics_query", "boundary_query", "dedup_query",
    "deduplicate", "filter_replays", "load_settings", "mark_replays", "metadata_key", "open_answers",
    "open_boundary", "open_ledger_reader", "open_transport", "producer_id",
}  # fmt: skip


def test_the_public_names_are_these_and_all_of_them_load() -> None:
    assert set(admitone.__all__) == SURFACE
    for name in SURFACE:
        assert getattr(admitone, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = admitone.nothing_of_ours


@pytest.mark.parametrize("module", ["admitone", "admitone.cli"])
def test_importing_loads_neither_spark_nor_arrow(module: str) -> None:
    code = (
        f"import sys, {module}; heavy = {{'pyspark', 'pyarrow', 'pandas', 'numpy', 'pydantic'}};"
        " print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_errors_keep_their_code_problem_and_remedy_through_a_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(admitone.Fenced("a successor took over.", "stop")))
    assert str(error) == "[FENCED] a successor took over. Try: stop"
    assert isinstance(error, AdmitoneError)
    assert error.exit_code == 8

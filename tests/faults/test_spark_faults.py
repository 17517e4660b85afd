"""A handful of faults through Spark; the campaign has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.spark_harness import SparkCase, run_spark_case


@pytest.mark.parametrize(
    "case",
    [
        SparkCase("boundary.published", 1, "stop", "checkpoint deleted", seed=3),
        SparkCase("analytics.committing", 1, "stop", "old checkpoint restored", seed=5),
        SparkCase("analytics.counted", 2, "kill", "batch size changed", seed=6),
    ],
    ids=lambda case: f"{case.point}-{case.action}-{case.between.replace(' ', '_')}",
)
def test_a_fault_through_spark_changes_no_decision_and_no_count(
    case: SparkCase, tmp_path: Path
) -> None:
    struck, problems = run_spark_case(case, tmp_path / "home")

    assert struck == 1
    assert problems == []

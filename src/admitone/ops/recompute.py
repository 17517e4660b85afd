"""The analytics once more, from the beginning, beside the live ones."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import TypedDict

from admitone.analytics import counting_parameters
from admitone.analytics.recompute.rebuild import Recomputed
from admitone.analytics.recompute.rebuild import recompute as count_again
from admitone.analytics.recompute.record_sources import FromArchive, FromLog
from admitone.core.errors import ConfigurationError
from admitone.ops.run import running
from admitone.ops.stores import Stores


class Compared(TypedDict):
    """How much was compared."""

    lists: int
    windows: int
    items: int


class RecomputeDocument(TypedDict):
    """What was counted again, how it differs from what was live, and whether it took its place."""

    records: int
    compared: Compared
    differing: int
    differences: list[str]
    switched: bool


def recompute(
    stores: Stores, *, from_archive: bool, accept: bool, report: Callable[[str, int], None]
) -> Recomputed:
    """Count everything again, compare, and switch unless something differs that is not accepted."""
    _refuse_other_parameters(stores)
    settings = stores.settings
    source = (
        FromArchive(settings, stores.ledger, stores.evidence)
        if from_archive
        else FromLog(settings, stores.transport)
    )
    return count_again(settings, source, accept=accept, report=report)


def document_of(found: Recomputed) -> RecomputeDocument:
    """Return what came of it as the interface spells it."""
    compared = found.comparison
    return {
        "records": found.records,
        "compared": {
            "lists": compared.lists, "windows": compared.windows, "items": compared.items,
        },
        "differing": compared.differing,
        "differences": compared.told,
        "switched": found.switched,
    }  # fmt: skip


def _refuse_other_parameters(stores: Stores) -> None:
    """Refuse while a pipeline counts under other parameters than the settings have now."""
    settings = stores.settings
    if not running(settings):
        return
    if stores.sketches.state().parameters != counting_parameters(settings):
        raise ConfigurationError(
            "A pipeline is running that counts under other parameters than [topk] has now.",
            "stop it, recompute, and start it again",
        )

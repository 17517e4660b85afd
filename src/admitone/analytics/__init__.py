"""The sketches' store, parameters and rules the settings name."""

from __future__ import annotations

from admitone.analytics.port import SketchReader, SketchStore
from admitone.analytics.sqlite.sketch_reader import SqliteSketchReader
from admitone.analytics.sqlite.sketch_store import SqliteSketchStore
from admitone.analytics.store_state import CountingParameters
from admitone.core.items import ItemRule
from admitone.core.sketches import SketchParameters
from admitone.core.windows import ALIASES
from admitone.governance.rules_in_force import rules_in_force
from admitone.settings import Settings


def open_sketch_store(settings: Settings, *, adopt: bool = True) -> SketchStore:
    """Open the store for counting under the settings' parameters; they come into force unless `adopt` is false."""
    parameters = counting_parameters(settings)
    store = SqliteSketchStore(settings.sqlite_path(settings.topk.store), parameters)
    if adopt:
        store.adopt(parameters, rules_in_force(settings))
    return store


def open_sketch_reader(settings: Settings) -> SketchReader:
    """Open the store for answers: what is returned cannot write, and makes no file; without one it is empty."""
    return SqliteSketchReader(
        settings.sqlite_path(settings.topk.store), counting_parameters(settings)
    )


def counting_parameters(settings: Settings) -> CountingParameters:
    """Return the parameters of `[topk]`."""
    topk = settings.topk
    return CountingParameters(
        sketch=SketchParameters(topk.width, topk.depth, topk.counter_bits, topk.k),
        kinds=tuple(ALIASES[alias] for alias in topk.windows),
        lateness=topk.lateness,
        idle_after=topk.idle_after,
        keep_minutes=topk.keep_minutes,
        keep_hours=topk.keep_hours,
        max_values=topk.max_values,
    )


def item_rules(settings: Settings) -> tuple[ItemRule, ...]:
    """Return the rules of `[[items]]`."""
    return tuple(ItemRule(**rule.model_dump()) for rule in settings.items)

"""Which values of a grouping attribute get a list of their own.

At most `max_values` of them; the rest is counted under `attribute=*other`. The choice is durable and never taken back,
so a value is either always in its own list or always in `*other`. While there is room, workers report new values and
the driver chooses, the heaviest of the batch first; once the choice is closed, workers count the rest under `*other`
themselves.

A worker reports only so many new values and counts those beyond under `*other` at once. They are split then, so only
values that every such worker reported can still be chosen, and the choice closes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from admitone.analytics.port import NOTHING_KEPT, CountedBatch, Delta, KeptValues
from admitone.core.items import OTHER, list_name, split_list
from admitone.core.sketches import Meta


class Chosen(NamedTuple):
    """The choices that changed, and the deltas under the lists they belong to."""

    values: dict[tuple[str, str], KeptValues]
    deltas: list[Delta]


def choose_values(
    kept: Mapping[tuple[str, str], KeptValues], batch: CountedBatch, max_values: int
) -> Chosen:
    """Choose among the values a batch brings, and move what was not chosen to `*other`."""
    fresh: dict[str, tuple[tuple[str, str], str]] = {}
    for name in {delta.dimension_list for delta in batch.deltas}:
        dimension, attribute, value = split_list(name)
        if attribute is None or value is None or value == OTHER:
            continue
        if value not in kept.get((dimension, attribute), NOTHING_KEPT).values:
            fresh[name] = ((dimension, attribute), value)
    weights: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for delta in batch.deltas:
        if delta.dimension_list in fresh:
            place, value = fresh[delta.dimension_list]
            meta = Meta.from_bytes(delta.parts.meta)
            weights[place][value] += meta.total + meta.late
    changed = {
        place: _choose(
            kept.get(place, NOTHING_KEPT),
            weights[place],
            batch.candidates.get(place, ()),
            max_values,
        )
        for place in weights.keys() | batch.candidates.keys()
    }
    renamed = {
        name: list_name(*place, OTHER)
        for name, (place, value) in fresh.items()
        if value not in changed[place].values
    }
    lists = (renamed.get(delta.dimension_list, delta.dimension_list) for delta in batch.deltas)
    moved = zip(batch.deltas, lists, strict=True)
    return Chosen(changed, [delta._replace(dimension_list=name) for delta, name in moved])


def _choose(
    kept: KeptValues,
    weights: Mapping[str, int],
    reported: Sequence[frozenset[str]],
    max_values: int,
) -> KeptValues:
    room = 0 if kept.closed else max(0, max_values - len(kept.values))
    eligible = [value for value in weights if all(value in values for values in reported)]
    eligible.sort(key=lambda value: (-weights[value], value))
    values = kept.values | frozenset(eligible[:room])
    left_out = len(kept.values) + len(weights) > len(values)
    return KeptValues(
        values, kept.closed or bool(reported) or left_out or len(values) >= max_values
    )

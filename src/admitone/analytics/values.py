"""Which values of a grouping attribute get a list of their own.

At most `max_values` of them; the rest is counted under `attribute=*other`. The choice is durable
and never taken back, so a value is either always in its own list or always in `*other`. While
there is room, workers report new values and the driver chooses here, the heaviest of the batch
first; once the choice is closed, workers send the rest to `*other` themselves.

A worker reports only so many new values and counts what is beyond under `*other` at once. Such a
value is split already, so only values that every such worker reported can still be chosen, and the
choice closes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from admitone.analytics.port import CountedBatch, Delta, KeptValues
from admitone.core.items import OTHER, list_name, split_list
from admitone.core.sketches import Meta

_NOTHING = KeptValues(frozenset(), closed=False)


class Chosen(NamedTuple):
    """The choices that changed, and the deltas under the lists they belong to."""

    values: dict[tuple[str, str], KeptValues]
    deltas: list[Delta]


def choose_values(
    kept: Mapping[tuple[str, str], KeptValues], batch: CountedBatch, max_values: int
) -> Chosen:
    """Choose among the values a batch brings, and move what was not chosen to `*other`."""
    attributes = {
        name: split_list(name) for name in {delta.dimension_list for delta in batch.deltas}
    }
    fresh = {
        name
        for name, (dimension, attribute, value) in attributes.items()
        if attribute is not None
        and value != OTHER
        and value not in kept.get((dimension, attribute), _NOTHING).values
    }
    weights: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for delta in batch.deltas:
        if delta.dimension_list in fresh:
            dimension, attribute, value = attributes[delta.dimension_list]
            assert attribute is not None
            assert value is not None
            meta = Meta.from_bytes(delta.parts.meta)
            known = weights[dimension, attribute]
            known[value] = known.get(value, 0) + meta.total + meta.late
    changed = {
        key: _choose(
            kept.get(key, _NOTHING), weights[key], batch.candidates.get(key, ()), max_values
        )
        for key in weights.keys() | batch.candidates.keys()
    }
    renamed = {}
    for name in fresh:
        dimension, attribute, value = attributes[name]
        assert attribute is not None
        if value not in changed[dimension, attribute].values:
            renamed[name] = list_name(dimension, attribute, OTHER)
    deltas = [
        delta._replace(dimension_list=renamed[delta.dimension_list])
        if delta.dimension_list in renamed
        else delta
        for delta in batch.deltas
    ]
    return Chosen(changed, deltas)


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

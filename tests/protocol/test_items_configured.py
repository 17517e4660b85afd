"""TOP-2, TOP-3: what is counted is configuration, from the event on the raw log to the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from admitone.analytics import open_sketch_store
from admitone.core.errors import NotFound
from admitone.results import open_answers
from admitone.settings import FILE_NAME
from tests.support.counting import count_all
from tests.support.pipeline import Pipeline, event

CONFIGURATION = """
[schemas]
folder = "schemas"

[topk]
max_values = 2

[[topics]]
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view", "purchase", "order_shipped"]

[[items]]
event_type = "page_view"
dimension = "url"
item = "url"
item_type = "url"
group_by = ["deviceType", "referrer"]

[[items]]                   # one event, counted under a second dimension
event_type = "page_view"
dimension = "userAgent"
item = "userAgent"
item_type = "agent"

[[items]]                   # weighed by a field of the event
event_type = "purchase"
dimension = "sold"
item = "productId"
item_type = "purchase"
weight = "quantity"

[[items]]                   # an event type of the user's own, with fields that lie deeper
event_type = "order_shipped"
dimension = "carrier"
item = "shipment.carrier"
item_type = "carrier"
group_by = ["shipment.country"]
weight = "shipment.parcels"
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / FILE_NAME).write_text(CONFIGURATION)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "order_shipped.1.0.0.json").write_text('{"required": ["shipment"]}')
    return Pipeline(tmp_path)


def test_dimensions_weights_groups_and_event_types_are_added_without_code(pipeline):
    views = [
        event(f"v{n}", {"url": f"/{n % 2}", "userAgent": agent, "deviceType": device})
        for n, (agent, device) in enumerate(
            [("curl", "mobile"), ("curl", "mobile"), ("lynx", "tablet"), ("curl", "desktop")]
        )
    ]
    sales = [
        purchase(f"p{n}", product, quantity)
        for n, (product, quantity) in enumerate([("a", 5), ("b", 3), ("a", 1)])
    ]
    parcels = [
        shipped("s0", carrier="snail", country="NL", parcels=40),
        shipped("s1", carrier="snail", country="BE", parcels=2),
        shipped("s2", carrier="owl", country="NL"),
    ]
    pipeline.ingest(*views, *sales, *parcels)
    pipeline.run()
    store = open_sketch_store(pipeline.settings)
    count_all(pipeline.settings, store)
    store.close()
    answers = open_answers(pipeline.settings)

    assert top(answers, "url") == {"/0": 2, "/1": 2}
    assert top(answers, "userAgent") == {"curl": 3, "lynx": 1}
    assert top(answers, "sold") == {"a": 6, "b": 3}
    assert top(answers, "carrier") == {"snail": 42, "owl": 1}
    assert top(answers, "carrier", "shipment.country=NL") == {"snail": 40, "owl": 1}
    assert answers.item("carrier", "snail", "all")["estimate"] == 42
    assert answers.item("agent", "curl", "all")["estimate"] == 3
    # Two devices have a list of their own, the third shares one with whatever else may come.
    assert top(answers, "url", "deviceType=mobile") == {"/0": 1, "/1": 1}
    assert sum(top(answers, "url", "deviceType=*other").values()) == 1
    with pytest.raises(NotFound, match=r"counted under deviceType=\*other"):
        answers.top("url", "all", "deviceType=fridge")
    with pytest.raises(NotFound, match="no dimension 'productId'"):
        answers.top("productId", "all")


def top(answers: Any, dimension: str, where: str | None = None) -> dict[str, int]:
    answer = answers.top(dimension, "all", where)
    assert answer["error_bound"] == 0
    return {line["item"]: line["estimate"] for line in answer["items"]}


def purchase(event_id: str, product: str, quantity: int) -> bytes:
    document = orjson.loads(event(event_id, eventType="purchase"))
    document["payload"] = {
        "orderId": event_id,
        "productId": product,
        "productCategory": "books",
        "customerType": "new",
        "quantity": quantity,
        "unitPrice": "9.90",
        "currency": "EUR",
    }
    return orjson.dumps(document)


def shipped(event_id: str, **shipment: Any) -> bytes:
    document = orjson.loads(event(event_id, eventType="order_shipped"))
    document["payload"] = {"shipment": shipment}
    return orjson.dumps(document)

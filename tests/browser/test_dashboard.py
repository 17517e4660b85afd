"""The dashboard in a real browser, on live data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from admitone.evidence import verify_receipt
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from tests.support.closing import close_green, open_run, stores_of
from tests.support.homes import count_everything, fill, home_with_tokens, serving
from tests.support.pipeline import event

# Conditions are waited for; how long they take is the machine's business.
expect.set_options(timeout=60_000)

PATIENCE_MS = 120_000
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
PHONE, WALL = (390, 844), (1920, 1080)
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=_FLAGS)
        yield launched
        launched.close()


@pytest.fixture(autouse=True)
def closed_pages(browser: Browser) -> Iterator[None]:
    """Leave no page behind: each follows the service, and all of them would slow the next one down."""
    yield
    for context in browser.contexts:
        context.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained about: a test that ends with any has failed."""
    found: list[str] = []
    yield found
    assert found == []


def opened(
    browser: Browser,
    url: str,
    complaints: list[str],
    size: tuple[int, int] = WALL,
    **options: object,
) -> Page:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # A page that is left, or a stream that is no longer wanted, takes its questions back.
    page.on(
        "requestfailed",
        lambda asked: complaints.append(asked.url) if asked.failure != "net::ERR_ABORTED" else None,
    )
    page.goto(url)
    return page


def test_a_window_is_chosen_and_the_address_remembers_it(browser, service, client, complaints):
    page = opened(browser, service.url, complaints)
    page.select_option("#window", "all")
    expect(page.locator("#top-foot")).to_contain_text("counted")
    everything = page.locator("#ranks .rank .value").first.inner_text()
    page.select_option("#window", "1m")
    expect(page.locator("#ranks .rank .value").first).not_to_have_text(everything)
    page.select_option("#window", "all")
    page.select_option("#dimension", "productId")
    question = {"dimension": "productId", "window": "all"}
    first = client.get("/v1/topk", params=question).json()["items"][0]["item"]
    expect(page.locator("#ranks .name").first).to_have_text(first)

    expect(page).to_have_url(re.compile("window=all"))
    expect(page).to_have_url(re.compile("dimension=productId"))
    page.reload()
    expect(page.locator("#window")).to_have_value("all")
    expect(page.locator("#ranks .name").first).to_have_text(first)


def test_a_value_narrows_the_list(browser, service, client, complaints):
    page = opened(browser, f"{service.url}/#dimension=url&window=1d", complaints)
    expect(page.locator("#ranks .rank")).not_to_have_count(0)
    everything = page.locator("#top-foot").inner_text()
    page.select_option("#where", index=1)
    expect(page.locator("#top-foot")).not_to_have_text(everything)

    value = page.locator("#where").input_value()
    answer = client.get(
        "/v1/topk", params={"dimension": "url", "window": "1d", "where": value}
    ).json()
    expect(page.locator("#top-foot")).to_contain_text(f"{answer['total']:,} counted")


def test_an_item_is_followed_over_time(browser, service, client, complaints):
    page = opened(browser, f"{service.url}/#dimension=url&window=1h", complaints)
    second = page.locator("#ranks .rank").nth(1)
    item = second.get_attribute("data-item")
    second.click()

    expect(page.locator("#item-title")).to_have_text(item)
    expect(page.locator("#item-plot .curve")).to_have_count(1)
    expect(second).to_have_attribute("aria-pressed", "true")
    newest = client.get("/v1/topk", params={"dimension": "url", "window": "1h"}).json()["items"][1]
    expect(page.locator("#item-foot")).to_contain_text(f"{newest['estimate']:,}")


def test_it_is_used_with_a_keyboard_alone(browser, service, complaints):
    page = opened(browser, f"{service.url}/#dimension=url&window=all", complaints)
    expect(page.locator("#ranks .rank")).not_to_have_count(0)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.locator("#ranks .rank").nth(2).focus()
    item = page.locator("#ranks .rank").nth(2).get_attribute("data-item")
    page.keyboard.press("Enter")
    expect(page.locator("#item-title")).to_have_text(item)
    page.locator("#held button").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#contradiction")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#contradiction")).to_be_hidden()


def test_a_contradiction_is_resolved_and_the_gate_turns_green(browser, tmp_path, complaints):
    fill(tmp_path, 600, malformed=0.0, contradictions=0.004, seed=9)
    with serving(tmp_path) as running:
        page = opened(browser, f"{running.url}/#window=1d", complaints)
        expect(page.locator("#tile-gate")).to_have_text("red")
        expect(page.locator("#gate-body .code").first).to_contain_text(
            "admitone quarantine list --run shop"
        )
        held = page.locator("#held button")
        expect(held).not_to_have_count(0)
        while held.count():
            left = held.count()
            held.first.click()
            expect(page.locator(".sides .side")).to_have_count(2)
            expect(page.locator(".changes tbody tr")).not_to_have_count(0)
            expect(page.locator(".side mark").first).to_be_visible()
            page.fill("#why", "the first one is right")
            page.get_by_role("button", name="Keep the first").click()
            expect(page.locator("#contradiction")).to_be_hidden()
            expect(held).to_have_count(left - 1)
        expect(page.locator("#tile-gate")).to_have_text("green", timeout=120_000)
        page.locator("#close-run").click()
        expect(page.locator("#tile-gate")).to_have_text("closed", timeout=120_000)


def test_what_happens_elsewhere_shows_by_itself(browser, tmp_path, complaints):
    settings = fill(tmp_path, 300)
    with serving(tmp_path) as running, running.client() as client:
        page = opened(browser, f"{running.url}/#dimension=url&window=all", complaints)
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        expect(page.locator("#rates-plot rect").first).to_be_visible()
        lines = [
            json.loads(event(f"live-{number}", {"url": "/brand-new"})) for number in range(999)
        ]
        client.post("/v1/events", json=lines).raise_for_status()
        count_everything(settings)
        expect(page.locator("#ranks .name").first).to_have_text("/brand-new", timeout=120_000)


def test_an_empty_home_says_what_to_do(browser, tmp_path, complaints):
    with serving(tmp_path) as running:
        page = opened(browser, running.url, complaints)
        expect(page.locator("#ranks")).to_contain_text("Nothing has been counted yet")
        expect(page.locator("#gate-body")).to_contain_text("No run yet")
        expect(page.locator("#held")).to_contain_text("Nothing is held back")
    complaints[:] = [line for line in complaints if "404" not in line]


def test_what_is_stale_says_how_old_it_is_and_what_waits(browser, tmp_path, complaints):
    settings = fill(tmp_path, 300)
    transport = open_transport(settings)
    lines = [event(f"waits-{number}") for number in range(40)]
    for _ in ingest_lines(transport, raw_topic(settings, transport), lines, "shop"):
        pass
    with serving(tmp_path) as running:
        page = opened(browser, f"{running.url}/#window=1d", complaints)
        expect(page.locator("#ranks .rank")).not_to_have_count(0)
        expect(page.locator("#notice")).to_contain_text("40 wait, and no pipeline runs here.")
        expect(page.locator("#notice")).to_contain_text("admitone run")
        expect(page.locator("#tile-waiting-note")).to_contain_text("40 undecided")
        expect(page.locator("#top-foot")).to_contain_text("as of")


def test_a_service_that_goes_away_leaves_what_was_seen_and_says_so(browser, tmp_path, complaints):
    fill(tmp_path, 300)
    with serving(tmp_path) as running:
        page = opened(browser, f"{running.url}/#window=1d", complaints)
        expect(page.locator("#ranks .rank")).not_to_have_count(0)
        running.stop()
        expect(page.locator("#connection")).to_have_attribute("data-state", "down", timeout=120_000)
        expect(page.locator("#notice")).to_contain_text("admitone serve")
        expect(page.locator("#ranks .rank")).not_to_have_count(0)
    complaints.clear()


def test_a_token_is_asked_for_and_kept_out_of_the_address(browser, tmp_path, complaints):
    tokens = home_with_tokens(tmp_path)
    with serving(tmp_path) as running:
        page = opened(browser, running.url, complaints)
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#sign-in")).to_be_visible()
        page.fill("#token", tokens["read"])
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        assert tokens["read"] not in page.url
    complaints[:] = [line for line in complaints if "401" not in line and "404" not in line]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WALL], ids=["phone", "wall"])
def test_nothing_is_cut_off_on_a_phone_or_a_wall(browser, service, complaints, size, theme):
    """The pictures stay in build/screenshots, to be looked at."""
    page = opened(
        browser, f"{service.url}/#dimension=url&window=1d", complaints, size, color_scheme=theme
    )
    expect(page.locator("#ranks .rank")).not_to_have_count(0)
    expect(page.locator("#item-plot .curve")).to_have_count(1)
    wide = page.evaluate("document.documentElement.scrollWidth")
    picture = PICTURES / f"{size[0]}-{theme}.png"
    page.screenshot(path=picture, full_page=True)

    assert wide <= size[0]
    if size == WALL:
        assert page.evaluate("document.documentElement.scrollHeight") <= size[1]
    assert picture.stat().st_size > 20_000


def test_the_description_of_the_api_is_shown_without_anything_from_elsewhere(
    browser, service, complaints
):
    page = opened(browser, f"{service.url}/docs", complaints)

    expect(page.locator(".operation")).not_to_have_count(0)
    page.get_by_text("/v1/events").click()
    expect(page.locator(".operation pre").first).to_contain_text("metadata")


def test_the_pages_name_no_other_site():
    web = Path(__file__).parents[2] / "src/admitone/service/web"
    for file in web.iterdir():
        text = file.read_text(encoding="utf-8")
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file
        assert "https://" not in text.replace("https?:", ""), file


def test_an_events_ticket_is_shown_and_its_proof_downloaded(
    browser: Browser, tmp_path: Path
) -> None:
    """The proof that the browser saves is checked by the program for strangers."""
    pipeline = open_run(tmp_path)
    close_green("r", *stores_of(pipeline))
    with serving(tmp_path) as running:
        page = opened(browser, f"{running.url}/?run=r", [])  # nothing is counted there
        page.fill("#event-id", "e2")
        page.press("#event-id", "Enter")
        expect(page.locator("#ticket")).to_be_visible()
        expect(page.locator("#ticket-body .deliveries tbody tr")).to_have_count(1)
        expect(page.locator("#ticket-body .proof")).to_contain_text(
            "leaf 2 of 2, 1 steps to the root"
        )
        page.screenshot(path=PICTURES / "ticket.png")
        with page.expect_download(timeout=PATIENCE_MS) as saving:
            page.click("#download-proof")
        assert saving.value.suggested_filename == "proof-e2.json"
        document = json.loads(Path(saving.value.path()).read_text())
        assert verify_receipt.check_proof(document, None)[0] == "event e2 was ADMITTED"
        page.keyboard.press("Escape")
        page.fill("#event-id", "nobody")
        page.press("#event-id", "Enter")
        expect(page.locator("#ticket-body .empty")).to_contain_text("No delivery of event 'nobody'")

"""The chat page in a real browser: a conversation from the first message to a reload, and nothing leaves the server."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Running, Start
from serving.tiny import CHATML, saying, write_tiny

from edgellm.backends.fake import FakeBackend

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

sync_api.expect.set_options(timeout=60_000)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (Debian: chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium, without a window."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A new tab with an empty storage. Faults of the page fail the test."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    context.close()
    assert faults == []


def ask(tab: Any, text: str) -> None:
    tab.get_by_label("Message", exact=True).fill(text)
    tab.keyboard.press("Enter")


def answers(tab: Any) -> list[str]:
    """The answers that are shown, once none is on its way."""
    tab.wait_for_selector("#send:not([hidden])")
    return list(tab.locator(".turn.assistant .body").all_inner_texts())


@needs_browser
def test_a_whole_conversation(start: Start, tab: Any) -> None:
    s = start(FakeBackend(saying("hello there")))
    tab.goto(s.url)
    sync_api.expect(tab.get_by_label("Model")).to_have_value("tiny")
    ask(tab, "Hi")
    assert answers(tab) == ["hello there"]
    assert "tokens/s" in tab.locator(".turn.assistant .figures").inner_text()
    tab.get_by_role("button", name="Regenerate").click()
    assert answers(tab) == ["hello there"]
    ask(tab, "And more")
    assert answers(tab) == ["hello there"] * 2
    tab.get_by_role("button", name="Edit").first.click()
    tab.get_by_label("Edit the message").fill("Hello")
    tab.keyboard.press("Enter")
    assert answers(tab) == ["hello there"]
    assert tab.locator(".turn.user .body").all_inner_texts() == ["Hello"]
    tab.reload()
    tab.locator("#list .open").first.click()
    assert tab.locator(".turn.user .body").all_inner_texts() == ["Hello"]
    assert answers(tab) == ["hello there"]
    tab.get_by_role("button", name="New", exact=True).click()
    assert tab.locator(".turn").count() == 0
    ask(tab, "Other")
    answers(tab)
    assert tab.locator("#list .open").all_inner_texts() == ["Other", "Hi"]
    tab.get_by_label("Delete Other").click()
    assert tab.locator("#list .open").all_inner_texts() == ["Hi"]
    assert {url.split("/")[2] for url in tab.asked if url.startswith("http")} == {s.url.split("/")[2]}


ENDLESS = "Repeat the word one a thousand times: one one one one one one one one one one one one"


@needs_browser
def test_the_starter_model_answers(start: Start, tab: Any, smollm2_path: Path) -> None:
    s = start(path=smollm2_path, real=True, name="smollm2:135m", options={"n_ctx": 4096})
    tab.goto(s.url)
    sync_api.expect(tab.get_by_label("Model")).to_have_value("smollm2:135m")
    tab.get_by_role("button", name="Settings").click()
    tab.get_by_label("Temperature").fill("0")
    ask(tab, "Name three colors.")
    assert answers(tab) == ["Red\nBlue\nGreen"]
    assert tab.locator(".turn.assistant ol > li").count() == 3
    ask(tab, "Thank you.")
    assert len(answers(tab)) == 2
    assert "cached" in tab.locator(".turn.assistant .figures").last.inner_text()
    tab.get_by_role("button", name="Regenerate").first.click()
    assert answers(tab) == ["Red\nBlue\nGreen"]
    ask(tab, ENDLESS)
    sync_api.expect(tab.locator(".turn.assistant .body").last).to_contain_text("one")
    tab.keyboard.press("Escape")
    assert len(answers(tab)) == 2
    assert "stopped" in tab.locator(".turn.assistant .figures").last.inner_text()
    tab.get_by_role("button", name="Edit").last.click()
    tab.get_by_label("Edit the message").fill("Thank you.")
    tab.keyboard.press("Enter")
    thanks = answers(tab)[1]
    tab.reload()
    tab.locator("#list .open").first.click()
    assert answers(tab) == ["Red\nBlue\nGreen", thanks]
    assert tab.locator(".turn.user .body").all_inner_texts() == ["Name three colors.", "Thank you."]
    assert {url.split("/")[2] for url in tab.asked if url.startswith("http")} == {s.url.split("/")[2]}


@needs_browser
def test_stop(start: Start, tab: Any) -> None:
    stopped, seen = threading.Event(), list[int]()

    def wait(batch: object) -> None:
        """The answer does not end by itself, however long the browser takes."""
        seen.append(1)
        assert len(seen) < 50 or stopped.wait(120)

    s = start(FakeBackend(saying("ab", end=False), multi_step=False, on_step=wait))
    tab.goto(s.url)
    ask(tab, "Hi")
    sync_api.expect(tab.locator(".turn.assistant .body")).to_contain_text("abb")
    tab.keyboard.press("Escape")
    (text,) = answers(tab)
    assert text.startswith("ab")
    assert "stopped" in tab.locator(".figures").inner_text()
    while s.context.models.entries[0].served.active:  # type: ignore[union-attr]
        time.sleep(0.001)
    stopped.set()


@needs_browser
def test_what_a_model_writes_is_never_html(start: Start, tab: Any) -> None:
    text = (
        '<img src="http://evil.example/x" onerror="document.title=1"><script>document.title = 2</script>\n'
        "![a](http://evil.example/y) [b](javascript:alert(1)) [c](https://example.org/)\n\n**bold** `code`\n\n"
        "```html\n<b>x</b>\n```\n- one\n- two\n"
    )
    s = start(FakeBackend(saying(text)), options={"n_ctx": 1024}, path=None)
    tab.goto(s.url)
    ask(tab, "Hi")
    answers(tab)
    body = tab.locator(".turn.assistant .body")
    assert "<img src=" in body.inner_text()
    assert body.locator("img, script").count() == 0
    assert body.locator("a").evaluate_all("links => links.map(a => a.href)") == [
        "http://evil.example/x", "http://evil.example/y", "https://example.org/",
    ]  # fmt: skip
    assert body.locator("strong").inner_text() == "bold"
    assert body.locator("pre code").inner_text() == "<b>x</b>"
    assert body.locator("li").all_inner_texts() == ["one", "two"]
    assert tab.title() == "edgellm"
    assert not any("evil" in url for url in tab.asked)


@needs_browser
def test_thoughts_are_folded_and_columns_aligned(start: Start, tab: Any, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "t.gguf", 1024, template=CHATML + "{# </think> #}")
    said = "<think>\nSome *thoughts*.\n</think>\n\n| a | b |\n| --- | ---: |\n| x | 1 |"
    s = start(FakeBackend(saying(said)), path=path)
    tab.goto(s.url)
    ask(tab, "Hi")
    tab.wait_for_selector("#send:not([hidden])")
    folded = tab.locator(".turn.assistant details")
    assert folded.evaluate("e => e.open") is False
    folded.locator("summary").click()
    assert folded.locator("em").inner_text() == "thoughts"
    cells = tab.locator(".turn.assistant td")
    assert [cells.nth(i).evaluate("e => getComputedStyle(e).textAlign") for i in (0, 1)] == ["left", "right"]
    tab.get_by_role("button", name="Regenerate").click()
    tab.wait_for_selector("#send:not([hidden])")
    tab.reload()
    tab.locator("#list .open").first.click()
    assert tab.locator(".turn.assistant details").count() == 1  # it is kept


@needs_browser
def test_settings_are_sent(start: Start, tab: Any) -> None:
    s = start(FakeBackend(saying("ok")))
    tab.goto(s.url)
    tab.get_by_role("button", name="Settings").click()
    tab.get_by_label("System prompt").fill("Be brief.")
    tab.get_by_label("Temperature").fill("0.3")
    tab.get_by_label("Most tokens").fill("1")
    with tab.expect_request("**/chat/completions") as sent:
        ask(tab, "Hi")
    body = sent.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert (body["temperature"], body["max_tokens"]) == (0.3, 1)
    answers(tab)
    assert "cut off" in tab.locator(".figures").inner_text()


@needs_browser
def test_a_key_is_asked_for(start: Start, tab: Any) -> None:
    s = start(FakeBackend(saying("ok")), api_keys=("k",))
    tab.goto(s.url)
    tab.get_by_label("API key").fill("k")
    tab.keyboard.press("Tab")
    sync_api.expect(tab.get_by_label("Model")).to_have_value("tiny")
    ask(tab, "Hi")
    assert answers(tab) == ["ok"]


@needs_browser
def test_an_error_is_shown_and_can_be_tried_again(start: Start, tab: Any) -> None:
    s = start(FakeBackend(saying("ok")))
    tab.goto(s.url)
    ask(tab, "x " * 500)
    tab.wait_for_selector(".error")
    assert "exceeds the available context size" in tab.locator(".error").inner_text()
    assert tab.get_by_role("button", name="Regenerate").count() == 1


@needs_browser
def test_a_phone(start: Start, browser: Any) -> None:
    s = start(FakeBackend(saying("x" * 150)))
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
    context.set_default_timeout(60_000)
    tab = context.new_page()
    tab.goto(s.url)
    ask(tab, "Hi " + "y" * 60)
    answers(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert not tab.locator("#side").is_visible()
    tab.locator("#menu").click()
    tab.locator("#list .open").first.wait_for()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 23, 22)"
    context.close()


def test_the_page_is_files_of_the_package(shared: Running, start: Start) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = shared.http.get(path)
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert shared.http.get("/page.py").status_code == 404
    assert "http" not in shared.http.get("/").text.replace("http-equiv", "")
    assert start(page=False).http.get("/").status_code == 404

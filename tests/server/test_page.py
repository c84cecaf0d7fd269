"""The page at / in a headless Chromium: it chats, stops, fits a phone and a desktop, and calls its server alone."""

import functools
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from running_server import running
from verification.client_programs.chromium import open_chromium

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="2026-11-24: needs a browser, which pip cannot install; apt install chromium",
)

SIZES = [(390, 844, False), (390, 844, True), (1200, 800, False), (1200, 800, True)]


@pytest.fixture(scope="module")
def server(tiny_llama_bundle):
    with running([tiny_llama_bundle], api_key="secret", default_max_tokens=900) as server:
        yield server


@pytest.fixture(scope="module")
def page(server):
    with open_chromium("chromium", 60) as page:
        page.open(server.url)
        page.wait_for("document.readyState === 'complete' && !document.getElementById('settings').hidden")
        page.value("window.foreign = []")
        page.value("document.addEventListener('securitypolicyviolation', (e) => foreign.push(e.blockedURI))")
        yield page


def ask(page, text):
    page.value(f"document.getElementById('text').value = {text!r}")
    page.value("document.getElementById('form').requestSubmit()")


def answers(page):
    return page.value("[...document.querySelectorAll('article.assistant')].map((each) => each.innerText)")


IDLE = "document.getElementById('stop').hidden"


def test_the_page_asks_for_the_key_and_then_lists_the_models(page):
    assert "API key" in page.value("document.getElementById('hint').textContent")
    page.value("document.getElementById('key').value = 'secret'")
    page.value("document.getElementById('key').dispatchEvent(new Event('change'))")
    page.wait_for("document.getElementById('model').value === 'tiny-llama'")
    page.value("document.getElementById('gear').click()")


def test_an_answer_is_written_with_its_tokens_and_time(page):
    ask(page, "What is 345 + 278?")
    page.wait_for(f"document.querySelector('article.assistant .about') && {IDLE}")
    assert answers(page)[0].startswith("345 + 278 = 623\n14 tokens in ")
    assert page.value("messages.length") == 2


def test_an_answer_can_be_stopped_and_what_was_written_stays(page, server, monkeypatch):
    served = server.models.find(None)
    engine, ends = served.engine, list(served.model.manifest.tokens.eos)

    def slowly_and_without_an_end(token_ids, logits):
        time.sleep(0.02)
        logits[ends] = -np.inf
        return logits

    submit = functools.partial(engine.submit, logits_processors=[slowly_and_without_an_end])
    monkeypatch.setattr(engine, "submit", submit)
    ask(page, "Tell me a story.")
    page.wait_for("[...document.querySelectorAll('article.assistant')].at(-1).innerText.length > 20")
    page.value("document.getElementById('stop').click()")
    page.wait_for(IDLE)
    end = time.monotonic() + 20
    while engine.statistics().running and time.monotonic() < end:
        time.sleep(0.01)
    assert (engine.statistics().running, engine.statistics().cancelled) == (0, 1)
    assert answers(page)[-1].endswith("stopped")
    assert page.value("messages.at(-1).role") == "assistant" and page.value("messages.at(-1).content.length") > 20


def test_markup_of_messages_is_shown_as_text(page):
    ask(page, "<img src=x onerror=foreign.push('ran')><b>What is 2 + 3?</b>")
    page.wait_for(f"messages.length > 5 && {IDLE}")
    assert page.value("document.querySelectorAll('main img, main b').length") == 0
    assert "<b>What is" in page.value("[...document.querySelectorAll('article.user')].at(-1).innerText")


def test_an_error_of_the_server_is_shown(page):
    before = page.value("messages.length")
    page.value("document.getElementById('temperature').value = '-1'")
    ask(page, "What?")
    page.wait_for(f"document.querySelector('article.error') && {IDLE}")
    assert "temperature" in page.value("document.querySelector('article.error').innerText")
    assert page.value("messages.length") == before
    page.value("document.getElementById('temperature').value = '0'")


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_the_page_fits_a_phone_and_a_desktop_in_both_colours(page, width, height, dark):
    page.resize(width, height, dark=dark)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("document.documentElement.scrollHeight") <= height
    box = "document.getElementById('send').getBoundingClientRect()"
    assert page.value(f"{box}.right") <= width and page.value(f"{box}.bottom") <= height
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 28)") is dark
    if "EDGEFORMER_SCREENSHOTS" in os.environ:  # for people who change the page
        name = f"page-{width}-{'dark' if dark else 'light'}.png"
        Path(os.environ["EDGEFORMER_SCREENSHOTS"], name).write_bytes(page.screenshot())


def test_a_new_chat_forgets_the_old_one(page):
    page.value("document.getElementById('new').click()")
    assert page.value("messages.length") == 0 and answers(page) == []


def test_nothing_but_the_server_was_called(page, server):
    called = page.value("performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(called) > 3 and all(url.startswith(server.url) for url in called)
    assert page.value("foreign") == []
    page.value("fetch('http://127.0.0.1:9/').catch(() => 0)")
    page.wait_for("foreign.length === 1")

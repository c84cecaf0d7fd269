"""The page at / with a model that sees: pictures by button, paste and drop, shown and sent."""

import io
import shutil

import numpy as np
import pytest
from driven_page import IDLE, ask, choose, give, screenshot
from PIL import Image
from running_server import running
from verification.client_programs.chromium import open_chromium

from edgeformer.runtime import load

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="2026-11-24: needs a browser, which pip cannot install; apt install chromium",
)


def picture(seed, width=60):
    """Return a PNG of a few large squares."""
    squares = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(squares).resize((width, width * 2 // 3), Image.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


PICTURES = [picture(0), picture(1, 900), picture(2)]


@pytest.fixture(scope="module")
def server(smolvlm_bundle, tiny_llama_bundle):
    with running([smolvlm_bundle, tiny_llama_bundle], default_max_tokens=6) as server:
        yield server


@pytest.fixture(scope="module")
def page(server):
    with open_chromium("chromium", 60) as page:
        page.open(server.url)
        page.wait_for("document.readyState === 'complete' && document.getElementById('model').value === 'smolvlm'")
        yield page


def shown(page, selector):
    return page.value(f"document.querySelectorAll({selector!r}).length")


def test_pictures_are_offered_where_the_model_sees(page):
    hidden = "document.getElementById('attach').hidden"
    assert page.value(hidden) is False
    choose(page, "tiny-llama")
    assert page.value(hidden) is True
    give(page, "drop", PICTURES[0])
    choose(page, "smolvlm")
    assert page.value(hidden) is False and page.value("media.length") == 0


def test_button_paste_and_drop_add_pictures(page):
    for count, how in enumerate(("button", "paste", "drop"), 1):
        give(page, how, PICTURES[count - 1])
        page.wait_for(f"media.length === {count} && document.querySelectorAll('#tray img').length === {count}")
    page.value("document.querySelectorAll('#tray button')[0].click()")
    assert page.value("media.length") == 2 == shown(page, "#tray img")
    give(page, "drop", b"text", "notes.txt", "text/plain")
    page.wait_for("document.querySelector('article.error') !== null")
    assert "notes.txt is not a picture of PNG" in page.value("document.querySelector('article.error').innerText")


@pytest.mark.parametrize("width", [390, 1200])
def test_the_tray_fits_a_phone_and_a_desktop(page, width):
    page.resize(width, 844)
    box = "document.getElementById('send').getBoundingClientRect()"
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(f"{box}.right") <= width and page.value(f"{box}.bottom") <= 844
    screenshot(page, f"tray-{width}")


def test_pictures_are_sent_and_shown(page, smolvlm_bundle):
    model, images = load(smolvlm_bundle, "cpu", 1), PICTURES[1:]
    ask(page, "Which is red?")
    page.wait_for(f"messages.length === 2 && {IDLE}")
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Which is red?"}]
    wanted = model.chat([{"role": "user", "content": content}], images=images, max_new_tokens=6).finish()
    assert page.value("messages[1].content") == wanted.text
    assert page.value("document.querySelectorAll('article.user img').length") == 2
    assert page.value("media.length") == 0 and page.value("document.getElementById('tray').hidden")
    sent = page.value("request(messages).messages[0].content.map((part) => part.type)")
    assert sent == ["image_url", "image_url", "text"]
    page.wait_for("[...document.images].every((image) => image.complete && image.naturalWidth)")


@pytest.mark.parametrize("width", [390, 1200])
def test_the_conversation_fits_a_phone_and_a_desktop(page, width):
    page.resize(width, 844)
    assert page.value("document.documentElement.scrollWidth") <= width
    edges = page.value(
        "[...document.querySelectorAll('article img')].map((each) => each.getBoundingClientRect().right)"
    )
    assert max(edges) <= width
    screenshot(page, f"conversation-{width}")


def test_an_edited_message_has_its_pictures(page):
    page.value("document.querySelector('.tools .edit').click()")
    assert page.value("media.length") == 2
    page.value("document.getElementById('cancel').click()")
    assert page.value("media.length") == 0 and page.value("messages[0].media.length") == 2


def test_a_conversation_with_pictures_is_there_after_a_reload(page, server):
    page.open(server.url)
    page.wait_for("document.readyState === 'complete' && document.querySelectorAll('article.user img').length === 2")
    page.value("localStorage.setItem(KEPT, '')")
    page.value("messages[0].media = ['data:image/png;base64,' + 'A'.repeat(6_000_000)]; keep()")
    page.open(server.url)
    page.wait_for("document.readyState === 'complete' && document.querySelector('.lost') !== null")
    assert "A picture that this browser did not keep" in page.value("document.querySelector('.lost').innerText")
    page.wait_for("document.getElementById('model').value === 'smolvlm'")


def test_a_question_that_fails_gives_its_pictures_back(page):
    page.value("document.getElementById('new').click()")
    page.value("media = ['data:image/png;base64,AAAA']; drawMedia()")
    ask(page, "What?")
    page.wait_for(f"document.querySelector('article.error') && {IDLE}")
    assert "messages.0.content.0.image_url.url" in page.value("document.querySelector('article.error').innerText")
    assert page.value("[messages.length, media.length, document.getElementById('text').value]") == [0, 1, "What?"]

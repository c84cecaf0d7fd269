"""The page at / in a headless Chromium: it chats, stops, fits a phone and a desktop, and calls its server alone."""

import functools
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from running_server import running
from thinking_bundles import Script, with_template
from verification.client_programs.chromium import open_chromium

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="2026-11-24: needs a browser, which pip cannot install; apt install chromium",
)

SIZES = [
    (320, 640, False),
    (320, 640, True),
    (390, 844, False),
    (390, 844, True),
    (1200, 800, False),
    (1200, 800, True),
]


@pytest.fixture(scope="module")
def server(tiny_llama_bundle, tmp_path_factory):
    thinks = with_template(tiny_llama_bundle, tmp_path_factory.mktemp("bundles") / "thinks", special=True)
    with running([tiny_llama_bundle, thinks], api_key="secret", default_max_tokens=900) as server:
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


def slowed(monkeypatch, server, seconds, text="one two three four five six seven eight nine ten eleven twelve"):
    """Let the model say a text, a token every so many seconds."""
    served = server.models.find("tiny-llama")
    script = Script(served.tokenizer, text)

    def slowly(token_ids, logits):
        time.sleep(seconds)
        return script(token_ids, logits)

    submit = functools.partial(served.engine.submit, logits_processors=[slowly])
    monkeypatch.setattr(served.engine, "submit", submit)


def test_an_answer_goes_into_no_chat_that_began_later(page, server, monkeypatch):
    slowed(monkeypatch, server, 0.1)
    ask(page, "Count.")
    page.wait_for("document.querySelector('article.assistant')?.innerText.includes('two')")
    page.value("document.getElementById('new').click()")
    assert page.value("messages.length") == 0 and answers(page) == [] and page.value(IDLE)
    monkeypatch.undo()
    ask(page, "What is 345 + 278?")
    page.wait_for(f"document.querySelector('article.assistant .about') && {IDLE}")
    assert page.value("messages.map((each) => each.content)") == ["What is 345 + 278?", "345 + 278 = 623"]
    assert len(answers(page)) == 1


def test_stop_before_the_first_token_gives_the_question_back(page, server, monkeypatch):
    slowed(monkeypatch, server, 1.5)
    before = page.value("messages.length")
    ask(page, "Count to twelve.")
    page.value("document.getElementById('stop').click()")
    page.wait_for(IDLE)
    assert page.value("document.getElementById('text').value") == "Count to twelve."
    assert (
        page.value("messages.length")
        == before
        == len(page.value("[...document.querySelectorAll('article')].map(String)"))
    )


MARKDOWN = """# Title

Some **bold**, *italic*, `x < y` and [a link](https://example.org/), [no link](javascript:alert(1)).

1. one
2. two
   - inner

```js
if (a < b) run("<img src=x>");
```

| a | b |
|---|---|
| 1 | 2 |

<img src=x onerror="foreign.push('ran')"><script>foreign.push('ran')</script>"""


def test_markdown_is_shown_and_cannot_run(page, server, monkeypatch):
    page.value("document.getElementById('text').value = ''")
    slowed(monkeypatch, server, 0, MARKDOWN)
    ask(page, "Show Markdown.")
    page.wait_for(f"messages.length === 4 && {IDLE}")
    body = "[...document.querySelectorAll('article.assistant .body')].at(-1)"
    found = page.value(
        f"['h2', 'strong', 'em', '.p code', 'ol > li', 'ol ul > li', 'pre', 'td', 'a', 'img', 'script']"
        f".map((each) => {body}.querySelectorAll(each).length)"
    )
    assert found == [1, 1, 1, 1, 2, 1, 1, 2, 1, 0, 0]
    assert page.value(f"{body}.querySelector('a').rel") == "noopener noreferrer"
    assert page.value(f"{body}.querySelector('pre').textContent") == 'if (a < b) run("<img src=x>");'
    assert "<img src=x onerror" in page.value(f"{body}.innerText") and page.value("foreign") == []


def test_a_long_answer_of_marks_takes_no_time_to_show(page):
    for text in (
        "*" * 20_000,
        "[" * 20_000,
        "> " * 5_000,
        "`" * 20_000,
        "- " * 5_000,
        "|" * 20_000 + "\n" + "-|" * 9_000,
    ):
        took = page.value(
            f"(() => {{ const start = performance.now(); render(document.createElement('div'), {text!r});"
            " return performance.now() - start; })()"
        )
        assert took < 3000, (text[:5], took)


def test_texts_and_code_are_copied(page):
    page.value("window.copied = []; navigator.clipboard.writeText = async (text) => copied.push(text)")
    page.value("[...document.querySelectorAll('.tools .copy')].at(-1).click()")
    page.value("[...document.querySelectorAll('.code button')].at(-1).click()")
    page.wait_for("copied.length === 2")
    assert page.value("copied") == [MARKDOWN, 'if (a < b) run("<img src=x>");']


def test_an_answer_is_written_anew(page):
    page.value("[...document.querySelectorAll('.tools .again')][0].click()")
    page.wait_for(f"messages.length === 2 && document.querySelector('article.assistant .about') && {IDLE}")
    assert page.value("messages.map((each) => each.content)") == ["What is 345 + 278?", "345 + 278 = 623"]


def test_a_message_is_edited_and_all_behind_it_replaced(page):
    page.value("document.querySelector('.tools .edit').click()")
    assert page.value("document.getElementById('text').value") == "What is 345 + 278?"
    page.value("document.getElementById('cancel').click()")
    assert page.value("document.getElementById('text').value") == "" and page.value("messages.length") == 2
    page.value("document.querySelector('.tools .edit').click()")
    ask(page, "What is 2 + 3?")
    page.wait_for(f"messages.length === 2 && document.querySelector('article.assistant .about') && {IDLE}")
    assert page.value("messages.map((each) => each.content)") == ["What is 2 + 3?", "2 + 3 = 5"]
    assert "of 1024 in the conversation" in answers(page)[0]


def test_a_conversation_is_there_after_a_reload_but_not_the_key(page, server):
    assert "secret" not in page.value("JSON.stringify(localStorage)")
    page.value("document.getElementById('system').value = 'Add.'; keep()")
    page.open(server.url)
    page.wait_for("document.readyState === 'complete' && document.querySelectorAll('article').length === 2")
    page.value("window.foreign = []")
    page.value("document.addEventListener('securitypolicyviolation', (e) => foreign.push(e.blockedURI))")
    assert page.value("messages.length") == 2 and answers(page)[0].startswith("2 + 3 = 5")
    assert page.value("document.getElementById('system').value") == "Add."
    page.value("document.getElementById('system').value = ''")
    page.value("document.getElementById('key').value = 'secret'")
    page.value("document.getElementById('key').dispatchEvent(new Event('change'))")
    page.wait_for("document.getElementById('model').value === 'tiny-llama'")


def test_thinking_is_folded_and_sent_back(page, server, monkeypatch):
    served = server.models.find("thinks")
    script = Script(served.tokenizer, "<think>I add <b>them</b>.</think>It is 5.")
    submit = functools.partial(served.engine.submit, logits_processors=[script])
    monkeypatch.setattr(served.engine, "submit", submit)
    page.value("document.getElementById('new').click()")
    page.value("document.getElementById('model').value = 'thinks'")
    ask(page, "What is 2 + 3?")
    page.wait_for(f"document.querySelector('article.assistant .about') && {IDLE}")
    assert page.value("document.querySelector('details').open") is False
    assert page.value("document.querySelector('details').innerText") == "Thought"
    assert page.value("document.querySelector('details div').textContent") == "I add <b>them</b>."
    assert page.value("document.querySelector('.body').innerText") == "It is 5."
    sent = page.value("JSON.stringify(request(messages).messages)")
    assert '"reasoning_content":"I add <b>them</b>."' in sent and "about" not in sent
    page.value("document.getElementById('thinking').value = 'off'")
    assert page.value("request(messages).enable_thinking") is False
    page.value("document.getElementById('thinking').value = ''")


@pytest.mark.parametrize("dark", [False, True])
def test_soft_text_has_enough_contrast(page, dark):
    """WCAG 2.2, 1.4.3: 4.5 to 1."""
    page.resize(390, 844, dark=dark)
    ratio = page.value("""(() => {
      const light = (color) => {
        const [r, g, b] = color.match(/\\d+/g).map((each) => each / 255)
          .map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const style = (name, pseudo) => getComputedStyle(document.getElementById(name), pseudo);
      const [a, b] = [style('text', '::placeholder').color, style('text').backgroundColor].map(light);
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    })()""")
    assert ratio >= 4.5


def test_nothing_but_the_server_was_called(page, server):
    called = page.value("performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(called) >= 3 and all(url.startswith(server.url) for url in called)
    assert page.value("foreign") == []
    page.value("fetch('http://127.0.0.1:9/').catch(() => 0)")
    page.wait_for("foreign.length === 1")

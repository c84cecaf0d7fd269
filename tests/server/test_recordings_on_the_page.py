"""The page at / with a model that hears: recordings from files and the microphone; and with TrOCR."""

import io
import shutil

import numpy as np
import pytest
from driven_page import IDLE, ask, choose, give, screenshot
from PIL import Image
from running_server import running
from verification.client_programs.chromium import open_chromium
from wav import wav_file

from edgeformer.runtime import load

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="2026-11-24: needs a browser, which pip cannot install; apt install chromium",
)

HIDDEN = "['attach', 'record'].map((id) => document.getElementById(id).hidden)"
SAMPLES = (8000 * np.sin(np.arange(9600) / 20)).astype("<i2")


def sound(samples=SAMPLES, rate=16_000):
    """Return a WAV file."""
    return wav_file(samples, rate)


def png(seed):
    """Return the file of a picture of noise."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 50, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def page(voxtral_bundle, trocr_bundle, tiny_llama_bundle):
    with (
        running([voxtral_bundle, trocr_bundle, tiny_llama_bundle], default_max_tokens=6) as server,
        open_chromium("chromium", 60, microphone=True) as page,
    ):
        page.open(server.url)
        page.wait_for("document.readyState === 'complete' && document.getElementById('model').value === 'voxtral'")
        page.value("window.foreign = []")
        page.value("document.addEventListener('securitypolicyviolation', (e) => foreign.push(e.blockedURI))")
        yield page


def test_recordings_are_offered_where_the_model_hears(page):
    assert page.value(HIDDEN) == [False, False]
    choose(page, "trocr")
    assert page.value(HIDDEN) == [False, True]
    choose(page, "tiny-llama")
    assert page.value(HIDDEN) == [True, True]
    choose(page, "voxtral")


def test_a_file_is_sent_as_it_is_and_heard(page, voxtral_bundle):
    give(page, "button", sound(), "a.wav", "audio/x-wav")
    page.wait_for("document.querySelectorAll('#tray audio').length === 1")
    page.wait_for("document.querySelector('#tray audio').duration === 0.6")
    ask(page, "What is said?")
    page.wait_for(f"messages.length === 2 && {IDLE}")
    content = [{"type": "audio"}, {"type": "text", "text": "What is said?"}]
    model = load(voxtral_bundle, "cpu", 1)
    wanted = model.chat([{"role": "user", "content": content}], sounds=[sound()], max_new_tokens=6).finish()
    assert page.value("messages[1].content") == wanted.text
    other = model.chat([{"role": "user", "content": content}], sounds=[sound(SAMPLES[::-1] // 9)], max_new_tokens=6)
    assert other.finish().text != wanted.text  # so that another recording would be seen
    assert page.value("document.querySelectorAll('article.user audio').length") == 1
    assert page.value("[media.length, document.getElementById('tray').hidden]") == [0, True]


def test_the_microphone_records_what_is_sent(page):
    page.value("document.getElementById('record').click()")
    page.wait_for("recorder?.state === 'recording'")
    assert page.value("document.getElementById('record').getAttribute('aria-label')") == "Stop recording"
    page.value("new Promise((done) => setTimeout(done, 1200)).then(() => { window.waited = true; })")
    page.wait_for("window.waited")
    ask(page, "Not while it records.")
    assert page.value("messages.length") == 2
    page.value("document.getElementById('record').click()")
    page.wait_for("media.length === 1 && recorder === null")
    assert page.value("media[0].startsWith('data:audio/wav;base64,UklGR')")  # RIFF
    page.wait_for("document.querySelector('#tray audio').duration > 0.5")
    assert page.value("document.querySelector('#tray audio').duration") < 2.0
    loudest = """new OfflineAudioContext(1, 1, 16000).decodeAudioData(
      Uint8Array.from(atob(media[0].split(',')[1]), (each) => each.charCodeAt(0)).buffer
    ).then((sound) => { window.loudest = Math.max(...sound.getChannelData(0)); })"""
    page.value(loudest)
    page.wait_for("window.loudest > 0.05")  # the device beeps
    ask(page, "What is said?")
    page.wait_for(f"messages.length === 4 && {IDLE}")


@pytest.mark.parametrize("width", [390, 1200])
def test_recordings_fit_a_phone_and_a_desktop(page, width):
    page.resize(width, 844)
    give(page, "drop", sound(), "b.wav", "audio/wav")
    page.wait_for("media.length === 1 && document.querySelector('#tray audio').readyState > 0")
    box = "document.getElementById('send').getBoundingClientRect()"
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(f"{box}.right") <= width and page.value(f"{box}.bottom") <= 844
    edges = page.value("[...document.querySelectorAll('audio')].map((each) => each.getBoundingClientRect().right)")
    assert len(edges) == 3 and max(edges) <= width
    screenshot(page, f"recordings-{width}")
    page.value("document.querySelector('#tray button').click()")
    assert page.value("media.length") == 0


def test_what_is_no_recording_is_refused(page):
    for content, kind, message in (
        (b"text", "text/plain", "a.file is not a recording."),
        (b"nothing", "audio/mpeg", "a.file is not a recording that this browser can play."),
    ):
        give(page, "drop", content, "a.file", kind)
        page.wait_for(f"document.querySelector('article.error')?.innerText === {message!r}")
        page.value("document.querySelector('article.error').parentElement.remove()")


def test_another_rate_becomes_16000_samples_a_second(page):
    """A file that is not WAV is decoded by the browser; here its type alone says so."""
    give(page, "paste", sound(np.repeat(SAMPLES, 3), 48_000), "a.flac", "audio/flac")
    page.wait_for("media.length === 1")
    sizes = page.value(
        "[atob(media[0].split(',')[1]).length, new DataView(Uint8Array.from("
        "atob(media[0].split(',')[1]), (each) => each.charCodeAt(0)).buffer).getUint32(24, true)]"
    )
    assert sizes == [44 + 2 * len(SAMPLES), 16_000]
    page.value("media = []; drawMedia()")


def test_a_model_that_reads_one_picture_gets_no_conversation(page, trocr_bundle):
    page.value("document.getElementById('system').value = 'Be brief.'")
    choose(page, "trocr")
    for seed in range(2):
        give(page, "button", png(seed))
        page.wait_for("media.length === 1")
        ask(page, "")
        page.wait_for(f"messages.length === {6 + 2 * seed} && {IDLE}")
        wanted = load(trocr_bundle, "cpu", 1).generate(png(seed), max_new_tokens=6).text
        assert page.value("messages.at(-1).content") == wanted
    ask(page, "What?")
    page.wait_for(f"document.querySelector('article.error') && {IDLE}")
    assert "reads no text" in page.value("document.querySelector('article.error').innerText")


def test_the_page_calls_nothing_but_its_server(page):
    assert page.value("window.foreign") == []


def reload(page, expected):
    page.value("window.before = true")
    page.open(page.value("location.href"))
    page.wait_for(f"document.readyState === 'complete' && !window.before && {expected}")


def test_a_recording_is_there_after_a_reload_or_named(page):
    page.value("document.getElementById('new').click()")
    page.value("document.getElementById('system').value = ''")
    choose(page, "voxtral")
    give(page, "button", sound(), "a.wav", "audio/wav")
    page.wait_for("media.length === 1")
    ask(page, "What is said?")
    page.wait_for(f"messages.length === 2 && {IDLE}")
    reload(page, "document.querySelectorAll('article.user audio').length === 1")
    page.value("messages[0].media = ['data:audio/wav;base64,' + 'A'.repeat(6_000_000)]; keep()")
    reload(page, "document.querySelector('.lost') !== null")
    assert "A recording that this browser did not keep" in page.value("document.querySelector('.lost').innerText")

"""Steps of tests that drive the page at / in a browser: choose a model, give files, ask, take a picture of it."""

import base64
import os
from pathlib import Path

GIVEN = """window.given = (name, content, type) => {
  const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0)), data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  return data;
}"""

IDLE = "document.getElementById('stop').hidden"


def give(page, how, content, name="a.png", kind="image/png"):
    page.value(GIVEN)
    data = f"given({name!r}, {base64.b64encode(content).decode()!r}, {kind!r})"
    events = {
        "button": f"document.getElementById('file').files = {data}.files;"
        "document.getElementById('file').dispatchEvent(new Event('change'))",
        "paste": f"document.getElementById('text').dispatchEvent("
        f"new ClipboardEvent('paste', {{ clipboardData: {data}, bubbles: true, cancelable: true }}))",
        "drop": f"document.querySelector('main').dispatchEvent("
        f"new DragEvent('drop', {{ dataTransfer: {data}, bubbles: true, cancelable: true }}))",
    }
    page.value(events[how])


def choose(page, model):
    page.value(f"document.getElementById('model').value = {model!r}")
    page.value("document.getElementById('model').dispatchEvent(new Event('change'))")


def ask(page, text):
    page.value(f"document.getElementById('text').value = {text!r}")
    page.value("document.getElementById('form').requestSubmit()")


def screenshot(page, name):
    if "EDGEFORMER_SCREENSHOTS" in os.environ:  # for people who change the page
        Path(os.environ["EDGEFORMER_SCREENSHOTS"], f"{name}.png").write_bytes(page.screenshot())

"""Run examples/browser in a headless Chromium: transformers.js over onnxruntime-web, by WebAssembly or WebGPU."""

import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from verification.client_programs.chromium import Page, open_chromium
from verification.client_programs.client import DECODERS, EXAMPLES, TIMEOUT, ClientError, Places, Prompts, Tokens
from verification.client_programs.programs import missing_package, package_versions, with_modules

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

BUTTON, TEXT, STATUS = (f"document.querySelector('{part}')" for part in ("button", "#text", "#status"))
COMPLAINS = f"{STATUS}?.textContent.includes('does not work')"
READY = f"{BUTTON}?.disabled === false || {COMPLAINS}"


class BrowserClient:
    """Type token ids into the page as words: its model is given a tokenizer whose words are the ids."""

    tasks = DECODERS

    def missing(self, places: Places) -> str | None:
        """Implement Client."""
        if program(places) is None:
            return "chromium; install Chromium or Chrome, or name it with --chromium"
        return missing_package(places)

    def versions(self, places: Places) -> dict[str, str]:
        """Implement Client."""
        said = subprocess.run([program(places) or "", "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"[\d.]+", said)
        chromium = {"chromium": found[0] if found else "unknown"}
        return chromium | package_versions(places, "@huggingface/transformers", "onnxruntime-web")

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Implement Client."""
        try:
            with open_page(bundle, places, words_are_ids=True) as page:
                return [
                    [int(word) for word in write(page, " ".join(map(str, prompt))).split()][:new_tokens]
                    for prompt in prompts
                ]
        except (RuntimeError, TimeoutError) as error:
            raise ClientError(str(error)) from None


def program(places: Places) -> str | None:
    """Return the Chromium program to run."""
    return next(filter(None, map(shutil.which, [places.chromium] if places.chromium else PROGRAMS)), None)


@contextmanager
def open_page(
    bundle: Path,
    places: Places,
    *,
    words_are_ids: bool = False,
    for_gpu: Path | None = None,
    asks: str = "",
    **chromium: bool,
) -> Iterator[Page]:
    """Serve the example with a bundle and yield its page once the model is loaded.

    for_gpu: a bundle for WebGPU. asks: the query of the address. chromium: options of `open_chromium`.

    Raises RuntimeError with the page's message if the page reports an error.
    """
    with with_modules(EXAMPLES / "browser", places) as folder:
        link_bundle(bundle, Path(folder) / "model", words_are_ids)
        if for_gpu is not None:
            link_bundle(for_gpu, Path(folder) / "model-webgpu", words_are_ids)
        with served(Path(folder)) as address, open_chromium(program(places) or "", TIMEOUT, **chromium) as page:
            page.open(f"{address}/index.html{asks}")
            wait(page)
            yield page


def wait(page: Page) -> None:
    """Wait until the page is ready. Raises RuntimeError if the page reports an error."""
    page.wait_for(READY)
    if page.value(COMPLAINS):
        raise RuntimeError(page.value(f"{STATUS}.textContent"))


def write(page: Page, prompt: str) -> str:
    """Type a prompt, press the button, wait for the end, and return the generated text."""
    page.value(f"document.querySelector('input').value = {json.dumps(prompt)}; {BUTTON}.click()")
    wait(page)
    return page.value(f"{TEXT}.dataset.ids")


def link_bundle(bundle: Path, folder: Path, words_are_ids: bool) -> None:
    """Create a folder of links to a bundle, optionally with a tokenizer whose words are the token ids."""
    shutil.copytree(bundle, folder, copy_function=lambda source, link: Path(link).symlink_to(Path(source).resolve()))
    if not words_are_ids:
        return
    size = json.loads((bundle / "edgeformer.json").read_text(encoding="utf-8"))["vocab_size"]
    vocabulary = {str(token): token for token in range(size)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"},
        "post_processor": None,
        "decoder": None,
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "0"}
    for name, content in {"tokenizer.json": tokenizer, "tokenizer_config.json": config}.items():
        change_file(folder, name, content)


def change_file(folder: Path, name: str, content: Any) -> None:
    """Write a JSON file of a bundle, or of links to one, anew, and its size and hash into edgeformer.json."""
    text, place = json.dumps(content), folder / "edgeformer.json"
    manifest = json.loads(place.read_text(encoding="utf-8"))
    manifest["files"][name] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    for file, written in ((folder / name, text), (place, json.dumps(manifest))):
        file.unlink(missing_ok=True)  # a link: to write through it would change the bundle
        file.write_text(written, encoding="utf-8")


class Quiet(SimpleHTTPRequestHandler):
    """Serve files without logging."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback interface and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

"""A server over tiny-llama for the programs: its chat template has tools, and a script calls one where it should.

tiny-llama answers plain questions by itself, and JSON and calls that have to come follow a grammar. It never learned to
call a tool when it may: where a prompt has the tool `weather` and ends with a user who asks for it, the script writes a
call, and behind what the tool returned, an answer. All else is `edgeformer serve` as it is.
"""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeformer.server.http.run import DrainingServer, listen, open_models, url_of
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModel

ANSWER = "It is 22 degrees and sunny in Paris."
ARGUMENTS = {"city": "Paris"}
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
TOKEN_SECONDS = 0.005
"""Seconds that a token takes at least. A stream gives what has come since its client last listened, so that the few
tokens of tiny-llama would come in one piece where the machine is busy."""
TURN, END = "<|im_start|>", "<|im_end|>"

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nCall as <tool_call>{"name": …}</tool_call>: ' }}
{%- for tool in tools %}{{- tool.function.name }} {% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' or message.role == 'tool' or message.role == 'user' %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""


def with_tools(bundle: Path, folder: Path) -> Path:
    """Copy a bundle of tiny-llama to a folder, with a chat template that has tools."""
    shutil.copytree(bundle, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    manifest = json.loads((folder / "edgeformer.json").read_text(encoding="utf-8"))
    manifest["files"]["chat_template.jinja"]["bytes"] = len(TEMPLATE.encode())
    (folder / "edgeformer.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def script_of(prompt: str) -> str | None:
    """Return what the model is to say behind a prompt; None for what it says by itself."""
    turns = prompt.split(TURN)
    has_tool = "weather" in prompt.partition(END)[0].partition("</tool_call>: ")[2]
    if len(turns) < 2 or not turns[-1].startswith("assistant\n") or not has_tool:
        return None
    asked = turns[-2]
    if asked.startswith("tool\n"):
        return ANSWER
    return CALL if asked.startswith("user\n") and "weather" in asked else None


def slowed(ids: Any, logits: Any) -> Any:
    """Return logits as they are, after `TOKEN_SECONDS`."""
    time.sleep(TOKEN_SECONDS)
    return logits


def follow_script(served: ServedModel) -> None:
    """Let a model say what the script says. A grammar of the answer has to allow it."""
    submit, tokenizer = served.engine.submit, served.tokenizer

    def scripted(prompt: Sequence[int], **options: Any) -> Any:
        said = script_of(tokenizer.decode(prompt, skip_special_tokens=False))
        if said is None:
            return submit(prompt, logits_processors=[slowed], **options)
        tokens = [*tokenizer.encode(said, add_special_tokens=False), served.model.manifest.tokens.eos[0]]

        def forced(ids: Any, logits: Any) -> Any:
            kept = np.full_like(logits, -np.inf)
            kept[tokens[min(len(ids) - len(prompt), len(tokens) - 1)]] = 0
            return slowed(ids, kept)

        return submit(prompt, logits_processors=[forced], **options)

    served.engine.submit = scripted  # type: ignore[method-assign]


@contextlib.contextmanager
def scripted_server(bundle: Path) -> Iterator[str]:
    """Serve a bundle, which follows the script, while the `with` lasts; yield the address."""
    options = ServerOptions(port=0, default_max_tokens=100)
    models = open_models([bundle], options, "cpu", 1)
    follow_script(models.find(None))
    with listen(options) as listener:
        server = DrainingServer(models, options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            models.close(drain=False)

"""Bundles whose template has marks of thinking, and a script that their model says."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

TEMPLATE = """\
{% for message in messages %}{{ message.role }}: {{ message.content }}\
{% if message.reasoning_content %} ({{ message.reasoning_content }}){% endif %}
{% endfor %}assistant:{% if opens %}<think>
{% elif enable_thinking is defined and not enable_thinking %}off<think>

</think>

{% endif %}"""


class Script:
    """A logits processor: the model says these tokens, and then ends, wherever its prompt ended."""

    def __init__(self, tokenizer, text: str):
        self._tokens = [*tokenizer.encode_marks(text), tokenizer.backend.token_to_id("<|im_end|>")]
        self._begin = self._last = -1

    def __call__(self, token_ids, logits):
        if len(token_ids) != self._last + 1:  # another request
            self._begin = len(token_ids)
        self._last = len(token_ids)
        place = min(len(token_ids) - self._begin, len(self._tokens) - 1)
        logits[:] = -np.inf
        logits[self._tokens[place]] = 0
        return logits


def with_template(bundle: Path, folder: Path, template: str = TEMPLATE, special: bool = False) -> Path:
    """Copy a bundle with another template. special: `<think>` and `</think>` are special tokens, in place of others."""
    shutil.copytree(bundle, folder)
    files = {"chat_template.jinja": template}
    if special:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (folder / name).read_text(encoding="utf-8")
            files[name] = text.replace("<|endoftext|>", "<think>").replace("<|im_start|>", "</think>")
    manifest = json.loads((folder / "edgeformer.json").read_text())
    manifest["tokens"]["eos"] = [2]  # <|im_end|> alone
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
        content = text.encode()
        manifest["files"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "edgeformer.json").write_text(json.dumps(manifest))
    return folder

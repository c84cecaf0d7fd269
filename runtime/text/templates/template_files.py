"""The chat templates of a tokenizer's folder, by name, from all the files in which Hugging Face has kept them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeformer.documents.json_document import read_object, read_text
from edgeformer.errors import BundleError, RequestError
from edgeformer.manifest.deployment import MORE_TEMPLATES, PROCESSOR_TEMPLATE, TEMPLATE
from edgeformer.runtime.request_values import shown

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of the template for all conversations, and of the one for those with tools."""


def read_templates(folder: Path, config: Mapping[str, Any], config_file: Path) -> dict[str, str]:
    """Return the chat templates of a folder; none of them where there are none.

    They are chat_template.jinja and the files of additional_chat_templates/, or else those in tokenizer_config.json, a
    text or a list of named ones, as in transformers; or else that of a processor, chat_template.json.

    Raises BundleError for a file that cannot be read, and for what is not a text.
    """
    files = {DEFAULT: folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}
    files |= {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if files:
        return {name: read_text(path, BundleError) for name, path in files.items()}
    found = config.get("chat_template")
    if found is None and (folder / PROCESSOR_TEMPLATE).is_file():
        config_file = folder / PROCESSOR_TEMPLATE
        found = read_object(config_file, BundleError).get("chat_template")
    if isinstance(found, list):
        found = _named(found, config_file)
    templates = found if isinstance(found, dict) else {} if found is None else {DEFAULT: found}
    for template in templates.values():
        if not isinstance(template, str):
            raise BundleError(f"{config_file} has chat_template = {shown(template)}; it must be a text.")
    return templates


def _named(entries: Sequence[Any], config_file: Path) -> dict[str, Any]:
    """Return the templates of a list by their names."""
    named = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise BundleError(f"{config_file} has a name that is no text in its list chat_template: {shown(entry)}.")
        named[name] = entry.get("template")
    return named


def chosen_name(names: Sequence[str], with_tools: bool) -> str:
    """Return the name of the template of a conversation, as transformers chooses it.

    Raises RequestError where there is none for a conversation like this.
    """
    if with_tools and TOOL_USE in names:
        return TOOL_USE
    if DEFAULT not in names:
        known = ", ".join(names)
        raise RequestError(f"this model has the chat templates {known}, and none for a conversation without tools.")
    return DEFAULT

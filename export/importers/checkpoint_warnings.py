"""Warnings about a checkpoint's tokenizer and generation_config.json, for people who will rely on a bundle of it.

The files say one thing, and what people get is another: a chat that runs to its limit, a text that is refused, token
ids that the weights do not mean. Each function yields sentences that say what will happen and what to do.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeformer.checkpoints.found_model import FoundModel
from edgeformer.checkpoints.vector_heads import M3_HEADS
from edgeformer.config import Task
from edgeformer.documents.json_document import read_object
from edgeformer.errors import BundleError, RequestError, shown
from edgeformer.export.importers.tokenizer_files import TokenizerFiles
from edgeformer.manifest.manifest import MODELS
from edgeformer.manifest.parts import SpecialTokens
from edgeformer.options.generation_fields import requested_fields
from edgeformer.runtime.text.tokenizer import Tokenizer

ROLES = ("user", "assistant", "user")
USER, ANSWER = "What is one and one?", "Two, of course."
"""A question and its answer, between which the chat template shows how it ends a turn."""

PROBES = ("Hello, world!", " two  spaces,\ta tab\nand 1234567 numbers", "naïve café, 漢字, 🙂", "cafe\u0301 ﬁ")
"""Texts that tokenizers part ways at: beginnings, spaces, digits, letters beyond ASCII, accents apart."""

RANK_BY_TOKENS = (
    "To rank by it, write modules.json and the template into its folder, as the reference of bundles says (Causal "
    "models that rank), and export again."
)
"""Advice for a causal model that should rank."""

LISTED = 3
"""Tokens that a sentence names at most."""


def checkpoint_warnings(
    found: FoundModel,
    tokenizer: TokenizerFiles,
    task: Task,
    tokens: SpecialTokens,
    vocab_size: int,
    compared: bool = False,
) -> tuple[str, ...]:
    """Return all that people should know of a model's files.

    tokenizer: the model's. vocab_size: rows of the embedding. compared: whether transformers reads the tokenizer, too.
    """
    form = MODELS[task].form
    generates = form != "encoder"
    return (
        *(decoder_warnings(found.generation_config()) if form == "decoder" else ()),
        *(ranking_warnings(found) if form == "decoder" else ()),
        *(end_warnings(tokens, vocab_size) if generates else ()),
        *tokenizer.warnings,
        *head_warnings(found),
        *tokenizer_warnings(tokenizer.folder, tokens if generates else None, vocab_size),
        *(other_reader_warnings(found.folder) if compared else ()),
    )


def head_warnings(found: FoundModel) -> Iterator[str]:
    """Yield which heads of a folder are left out, because their layers are pickles."""
    if not found.allow_pickle and all((found.folder / name).is_file() for name in M3_HEADS):
        yield (
            f"{' and '.join(M3_HEADS)} are pickles, so that the sparse weights and the vectors of tokens are left out. "
            "To read them: --allow-pickle."
        )


def ranking_warnings(found: FoundModel) -> Iterator[str]:
    """Yield that a causal model whose name says that it ranks becomes one that writes."""
    names = (found.name, found.hub_id, found.folder.name, found.hf_config.get("_name_or_path"))
    if any("rerank" in str(name).lower() for name in names):
        yield (
            "the name of this model says that it ranks texts, and its folder does not say by which tokens, so the "
            f"bundle writes texts. {RANK_BY_TOKENS}"
        )


def decoder_warnings(generation: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what generation_config.json asks of a decoder: edgeformer's calls are greedy, whatever it says."""
    if asked := requested_fields(generation or {}):
        yield (
            f"generation_config.json asks for {asked}, and the calls of a decoder are greedy unless they say "
            "otherwise. Give the options with a call, or GenerationConfig.from_folder(bundle)."
        )


def end_warnings(tokens: SpecialTokens, vocab_size: int) -> Iterator[str]:
    """Yield why no end token can end a text."""
    outside = [token for token in tokens.eos if not 0 <= token < vocab_size]
    if outside:
        yield (
            f"eos_token_id {', '.join(map(str, outside))} is no token: the model has 0 to {vocab_size - 1}. It ends no "
            "text. Correct it in generation_config.json, and export again."
        )
    if len(outside) == len(tokens.eos):
        yield "no eos_token_id ends a text, so every text goes on to its limit of new tokens."


def tokenizer_warnings(folder: Path, tokens: SpecialTokens | None, vocab_size: int) -> Iterator[str]:
    """Yield where the tokenizer of a folder does not fit the weights or the end tokens; nothing without tokenizer.json.

    tokens: None for a model that ends no texts. vocab_size: rows of the embedding.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    try:
        tokenizer = Tokenizer(folder)
    except BundleError as error:
        yield f"{error} No text can be encoded with the bundle, only token ids."
        return
    yield from _ids_beyond(tokenizer, vocab_size)
    yield from _moved_ids(tokenizer, read_object(file))
    if tokens is not None:
        yield from _ends_of_turns(tokenizer, tokens)


def other_reader_warnings(folder: Path) -> Iterator[str]:
    """Yield where transformers' own tokenizer of a folder gives other ids than the one of a bundle.

    Both read tokenizer.json, and some classes of transformers build parts of the tokenizer anew.
    """
    if not (folder / "tokenizer.json").is_file():
        return
    from transformers import AutoTokenizer

    ours = Tokenizer(folder)
    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of any class: what a tokenizer lacks shows anywhere in its constructor
        yield f"transformers cannot read the tokenizer, so its token ids were not compared: {shown(str(error), 200)}."
        return
    here, there = (
        {str(token): (id, token.lstrip, token.rstrip, token.single_word) for id, token in added.items()}
        for added in (ours.backend.get_added_tokens_decoder(), theirs.added_tokens_decoder)
    )
    unlike = [token for token, said in there.items() if here.get(token) != said]  # as other files say
    for text in [*PROBES, *(f"a {token} b{token}c" for token in unlike)]:
        mine, other = ours.encode(text), list(theirs(text)["input_ids"])
        if mine != other:
            yield (
                f"{type(theirs).__name__} of transformers gives {shown(text)} the ids {shown(other)}, and the bundle "
                f"gives it {shown(mine)}, by tokenizer.json. Use those that the model was trained with."
            )
            return


def _ids_beyond(tokenizer: Tokenizer, vocab_size: int) -> Iterator[str]:
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    beyond = sorted((id, text) for text, id in vocabulary.items() if id >= vocab_size)
    if beyond:
        yield (
            f"the tokenizer has {_listed([f'{text} ({id})' for id, text in beyond])}, and the embedding has "
            f"{vocab_size:,} rows: a text that spells such a token is refused."
        )


def _moved_ids(tokenizer: Tokenizer, stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield which added tokens get another id than tokenizer.json says: the package leaves no holes."""
    moved = [
        f"{added['content']} ({added['id']}, not {given})"
        for added in stored.get("added_tokens") or ()
        if (given := tokenizer.backend.token_to_id(added["content"])) != added["id"]
    ]
    if moved:
        yield (
            f"tokenizer.json has added tokens whose ids leave a hole, and the package tokenizers closes it, here as in "
            f"transformers: {_listed(moved)}. The weights may mean other tokens. Fill the hole with unused tokens."
        )


def _ends_of_turns(tokenizer: Tokenizer, tokens: SpecialTokens) -> Iterator[str]:
    """Yield the tokens that end a turn by the files, and at which the model does not stop."""
    ends = {"tokenizer_config.json names it as eos_token": tokenizer.special_token("eos_token")}
    ends["the chat template writes it behind an answer"] = _end_of_turn(tokenizer)
    unknown: dict[str, list[str]] = {}
    for reason, text in ends.items():
        if text is not None and tokenizer.backend.token_to_id(text) not in tokens.eos:
            unknown.setdefault(text, []).append(reason)
    for text, reasons in unknown.items():
        yield (
            f"{text} ends no text, although {' and '.join(reasons)}: answers may go on behind it, to their limit. Add "
            f"{tokenizer.backend.token_to_id(text)} to eos_token_id in generation_config.json, and export again."
        )


def _end_of_turn(tokenizer: Tokenizer) -> str | None:
    """Return the special token that the chat template writes behind an answer; None if it writes none."""
    if not tokenizer.has_chat_template:
        return None
    messages = [{"role": role, "content": text} for role, text in zip(ROLES, (USER, ANSWER, USER), strict=True)]
    try:
        behind = tokenizer.render_chat(messages).partition(ANSWER)[2].lstrip()
    except RequestError:  # a template that refuses these messages says nothing
        return None
    special = [token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if token.special]
    return max((text for text in special if text and behind.startswith(text)), key=len, default=None)


def _listed(each: Sequence[str]) -> str:
    more = len(each) - LISTED
    return ", ".join(each[:LISTED]) + (f" and {more} more" if more > 0 else "")

"""Make a tokenizer.json of the other files that a model may keep its tokenizer in.

| files                                    | tokenizers                                | read by                     |
|------------------------------------------|-------------------------------------------|-----------------------------|
| *.model                                  | SentencePiece: Llama, Gemma, T5, XLM-R, … | transformers, sentencepiece |
| vocab.json and *.spm or *.model          | Marian, M2M100; PLBart without vocab.json | the same, and by us         |
| tekken.json                              | Mistral                                   | transformers                |
| tiktoken.model, a tokenizer.model of it  | tiktoken                                  | transformers, tiktoken      |
| vocab.json, merges.txt, added_tokens.json| GPT-2 and its kin                         | transformers                |
| vocab.txt                                | BERT and its kin; ESM                     | transformers; by us, too    |
| *.gguf                                   | byte-level, or pieces of SentencePiece    | us (`checkpoints.gguf`)     |

transformers reads them once, when the model is exported; the runtime needs tokenizer.json only.
"""

import json
import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgeformer.checkpoints.gguf.gguf_file import open_gguf
from edgeformer.checkpoints.gguf.tokenizer_json import write_gguf_tokenizer
from edgeformer.checkpoints.weight_map import GGUF
from edgeformer.client_files.files import copy_files
from edgeformer.documents.json_document import read_object
from edgeformer.errors import MissingDependencyError, require, shown
from edgeformer.export.importers.piece_tokenizer import piece_tokenizer, residue_tokenizer
from edgeformer.manifest.deployment import ANYWHERE
from edgeformer.runtime.text.tokenizer import CONFIG, Tokenizer

STORED, TEKKEN, BOS_OF_TEKKEN = "tokenizer.json", "tekken.json", "<s>"

VOCABULARIES = (
    "tokenizer.model", "spiece.model", "spm.model", "sentencepiece.model", "sentencepiece.bpe.model", "source.spm",
    TEKKEN, "tiktoken.model", "vocab.json", "vocab.txt",
)  # fmt: skip
"""Files that a tokenizer is made of, beside others."""

FROM_THE_CLASS = (
    "tokenizer_class", "model_max_length", "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token",
    "mask_token",
)  # fmt: skip
"""Fields of tokenizer_config.json that old ones leave to the class of transformers."""

PROBES = (
    "Hello, world!", "two words and 1234567 numbers", " two  spaces,\ta tab\nand a line", "naïve café, 漢字, 🙂",
    "ﬁne ½ Ａ", "", "\n\n", "the end  ", "<unk> </s><s> <pad>",
)  # fmt: skip
"""Texts that tokenizers part ways at: beginnings, spaces, digits, letters beyond ASCII, spelled special tokens."""

PLAIN_PROBES = 4
"""The first of them, which SentencePiece itself is asked for, too: it knows of no special tokens."""

MOSES = {"biogpt": "BioGPT divides texts by the rules of Moses (sacremoses), which no tokenizer.json can hold"}
"""Why tokenizers of some types of models cannot be written, even where transformers has the packages to read them."""

READ_AS = {"umt5": "t5"}
"""Types of models whose tokenizer transformers makes of other files than tokenizer.json by another type alone."""

LOWERING = ("siglip2",)
"""Types of models whose class of tokenizers makes all texts lower-case, whatever tokenizer.json says."""

LINE_OF_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/=]+ \d+\r?\n")
LONGEST_LINE = 1024
"""A line of a file of tiktoken: bytes in base64, and an id."""


class TokenizerFiles:
    """The folder with the tokenizer of a model, and what people should know of it.

    folder: the model's own, or a temporary one with a tokenizer.json and all else that a bundle copies. It is removed
    when this object is gone. warnings: why there is no tokenizer.json, or what it does otherwise.
    """

    def __init__(self, folder: Path):
        self.folder, self.warnings = folder, tuple[str, ...]()
        files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
        gguf = None if files else next(iter(sorted(folder.glob(GGUF))), None)
        lowers = (folder / STORED).is_file() and _is_to_lower(folder)
        if not lowers and ((folder / STORED).is_file() or not (files or gguf)):
            return
        made = Path(tempfile.mkdtemp(prefix="edgeformer-tokenizer-"))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        if lowers:
            _write_lowering(folder, made)
            self.folder = made
            return
        try:
            if gguf is not None:
                self._read_gguf(gguf, made)
                return
            least = max(map(_count, files))
            theirs = _read(folder)
            if len(theirs) < least:  # transformers makes an empty tokenizer where it does not find its files
                raise ValueError(f"transformers finds {len(theirs):,} tokens, and there are {least:,}")
            _write(theirs, folder, made)
            self.folder = made
            self.warnings = tuple(_differences(made, theirs))
        except Exception as error:  # code that is not ours may raise anything
            self.warnings = (_unread((gguf or files[0]).resolve().name, error),)

    def _read_gguf(self, file: Path, made: Path) -> None:
        """Make the tokenizer of a GGUF file, if it has one."""
        opened = open_gguf(file)
        if "tokenizer.ggml.tokens" in opened.metadata:
            write_gguf_tokenizer(opened, made)
            copy_files(ANYWHERE, file.parent, made)
            self.folder = made


def _is_to_lower(folder: Path) -> bool:
    """Return whether transformers makes texts lower-case before the normalizer that tokenizer.json has."""
    config = folder / "config.json"
    if not config.is_file() or read_object(config).get("model_type") not in LOWERING:
        return False
    normalizer = read_object(folder / STORED).get("normalizer") or {}
    return {"type": "Lowercase"} not in [normalizer, *normalizer.get("normalizers", [])]


def _write_lowering(source: Path, folder: Path) -> None:
    """Write a tokenizer.json that makes texts lower-case first, and copy the files beside it."""
    copy_files(ANYWHERE, source, folder)
    content = read_object(source / STORED)
    others = [content["normalizer"]] if content.get("normalizer") else []
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *others]}
    (folder / STORED).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _count(file: Path) -> int:
    """Return how many tokens a tokenizer of a file has at least; 0 if that is not known.

    Raises MissingDependencyError without the package that reads it, and ValueError for a damaged file.
    """
    if file.name == "vocab.txt":
        return len(file.read_text(encoding="utf-8").splitlines())
    if file.name == "vocab.json":
        return len(read_object(file))
    if file.suffix == ".json":
        return 0
    if LINE_OF_TIKTOKEN.match(file.read_bytes()[:LONGEST_LINE]):
        require("tiktoken", "transformers")
        return 0
    return len(_sentencepiece_model(file).pieces)


def _read(folder: Path) -> Any:
    """Return transformers' tokenizer of a folder, by the files that are there and no code of the model's."""
    AutoTokenizer = require("transformers", "transformers").AutoTokenizer
    model_type = read_object(folder / "config.json").get("model_type") if (folder / "config.json").is_file() else None
    if model_type in MOSES:
        raise ValueError(f"{MOSES[model_type]}; make the ids with transformers, and decode them there")
    options = {"tokenizer_type": READ_AS[model_type]} if model_type in READ_AS else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Marian recommends a package that it uses for nothing here
        theirs = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, mistral_format=False, **options
        )
    if (folder / TEKKEN).is_file() and "add_bos_token" not in _config(folder):
        theirs.bos_token = BOS_OF_TEKKEN  # which mistral-common puts before every text, whatever files say
        theirs.add_bos_token = True
    return theirs


def _config(folder: Path) -> dict[str, Any]:
    return read_object(folder / CONFIG) if (folder / CONFIG).is_file() else {}


def _write(theirs: Any, source: Path, folder: Path) -> None:
    """Write tokenizer.json and what the source folder lacks of the files beside it; copy what it has."""
    theirs.save_pretrained(folder)
    saved = read_object(folder / CONFIG)
    if not (folder / STORED).is_file():
        _made(theirs).save(str(folder / STORED))
    copy_files(ANYWHERE, source, folder)
    if own := _config(source):
        known = {name: saved[name] for name in FROM_THE_CLASS if saved.get(name) is not None}
        (folder / CONFIG).write_text(json.dumps(known | own, indent=2, ensure_ascii=False), encoding="utf-8")


def _made(theirs: Any) -> Any:
    """Return the tokenizer that does what one of transformers does in Python. Raises ValueError where none does."""
    kind = type(theirs).__name__
    if kind == "EsmTokenizer":
        return residue_tokenizer(theirs)
    if kind == "MarianTokenizer" and not theirs.separate_vocabs:
        pieces = theirs.spm_files[0]  # of the source
    elif kind == "M2M100Tokenizer":
        pieces = theirs.spm_file
    elif kind == "PLBartTokenizer":
        pieces = theirs.vocab_file
    else:
        raise ValueError(f"{kind} of transformers has no tokenizer.json")
    return piece_tokenizer(theirs, _sentencepiece_model(Path(pieces)))


def _sentencepiece_model(file: Path) -> Any:
    """Return the ModelProto in a file. Raises ValueError for another file."""
    require("sentencepiece", "transformers")
    model = require("sentencepiece.sentencepiece_model_pb2", "transformers").ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # of protobuf's own class
        raise ValueError(f"{file.name} is damaged: {error}") from error
    if not model.pieces:
        raise ValueError(f"{file.name} is damaged: it has no pieces")
    return model


def _differences(folder: Path, theirs: Any) -> Iterator[str]:
    """Yield where a tokenizer.json gives other ids or pieces than the libraries that the model may be trained with."""
    ours = Tokenizer(folder)
    for text in PROBES:
        mine, other = ours.encode(text), list(theirs(text)["input_ids"])
        if mine != other:
            yield (
                f"{type(theirs).__name__} of transformers gives {shown(text)} the ids {shown(other)}, and the "
                f"tokenizer.json that was made of it gives {shown(mine)}."
            )
            break
    if not isinstance(getattr(theirs, "vocab_file", None), str) or not hasattr(theirs, "backend_tokenizer"):
        return  # what has no backend of tokenizers is SentencePiece itself
    yield from _other_pieces(ours, Path(theirs.vocab_file))


def _other_pieces(ours: Tokenizer, model: Path) -> Iterator[str]:
    """Yield where SentencePiece itself finds other pieces in a text: transformers rebuilds it from parts."""
    if model.suffix != ".model" or LINE_OF_TIKTOKEN.match(model.read_bytes()[:LONGEST_LINE]):
        return
    processor = require("sentencepiece", "transformers").SentencePieceProcessor(model_file=str(model))
    changes = '"Lowercase"' in (state := ours.backend.to_str()) or '"StripAccents"' in state  # before SentencePiece
    for text in PROBES[:PLAIN_PROBES]:
        if changes and not (text.isascii() and text.islower()):
            continue
        mine = [ours.backend.id_to_token(id) for id in ours.encode(text, add_special_tokens=False)]
        other = [processor.id_to_piece(id) for id in processor.encode(text)]
        if mine != other:
            yield (
                f"SentencePiece finds the pieces {shown(other)} in {shown(text)}, and transformers, which made the "
                f"bundle's tokenizer.json of {model.name}, finds {shown(mine)}. Use those that the model was trained "
                "with: if its page has a tokenizer.json, put it into the folder, and export again."
            )
            return


def _unread(name: str, error: Exception) -> str:
    """Return a sentence on why the tokenizer in a file could not be read, and what to do."""
    said = str(error).strip().partition("\n")[0].rstrip(".: ")
    advice = "If the model's page has a tokenizer.json, put it into the folder, and export again."
    advice = "Export again then." if isinstance(error, MissingDependencyError) else advice
    return f"the tokenizer in {name} could not be read, so the bundle takes token ids, not text: {said[:300]}. {advice}"

"""Read the heads of encoders that make other embeddings than one vector: ColBERT, SPLADE and BGE-M3.

ColBERT is a folder of sentence-transformers 6 or of PyLate, whose Dense modules project the state of every token, or
one of Stanford's, which has `linear.weight` beside the encoder. SPLADE is a folder with SpladePooling behind a masked
language model. BGE-M3 is one with the layers of its heads in `sparse_linear.pt` and `colbert_linear.pt`.
Source: sentence_transformers/multi_vector_encoder/model.py and base/modules/transformer.py of sentence-transformers 6;
FlagEmbedding/finetune/embedder/encoder_only/m3/modeling.py.
"""

import os
import string
from pathlib import Path
from typing import Any, Literal

from edgeformer.checkpoints.sentence_transformers import (
    PooledStates,
    listed_modules,
    read_layer,
    read_options,
    read_pooling,
)
from edgeformer.config.heads import (
    CombinedHead,
    Expansion,
    MaskedLMHead,
    PoolingHead,
    PoolingLayer,
    Reading,
    SpladeHead,
    TokenVectorsHead,
    TokenWeightsHead,
)
from edgeformer.documents.json_document import read_object
from edgeformer.errors import ConfigError, shown

STANFORD = "HF_ColBERT"
"""The class that config.json of Stanford's ColBERT names."""

METADATA = "artifact.metadata"
"""The file with the settings of Stanford's ColBERT, in JSON."""

QUERY_LENGTH = 32
"""Tokens of a query with its expansion, where a folder does not say."""

M3_HEADS = ("sparse_linear.pt", "colbert_linear.pt")
"""The files with the layers of BGE-M3's heads, each a pickle of a weight and a bias."""

M3_SKIPPED = ("cls_token", "eos_token", "pad_token", "unk_token")
"""Tokens that have no weight in BGE-M3."""


SCORES: dict[str, Literal["sum", "mean"]] = {"maxsim": "sum", "meanmaxsim": "mean"}
"""How the scores of a query's tokens become one, by similarity_fn_name in lower case."""


def read_vector_head(folder: Path, transformer: Path, hf_config: dict[str, Any]) -> PooledStates | None:
    """Return the head of a folder that makes other embeddings than one vector; None for another folder.

    folder: with modules.json, if there is one; transformer: the one with config.json. Raises ConfigError.
    """
    modules = [module for module in listed_modules(folder) if module[0] != "Dropout"]
    kinds = [kind for kind, _ in modules]
    if hf_config.get("architectures") == [STANFORD]:
        return _read_stanford(transformer)
    if kinds[1:2] == ["SpladePooling"]:
        return _read_splade(folder / modules[1][1] / "config.json", kinds)
    if kinds[1:2] == ["Dense"] and kinds[0] == "Transformer" and "Pooling" not in kinds:
        return _read_late_interaction(folder, transformer, modules)
    if all(os.path.isfile(transformer / name) for name in M3_HEADS):
        return _read_m3(folder, transformer, hf_config)
    return None


def _read_splade(path: Path, kinds: list[str]) -> PooledStates:
    options = read_options(path)
    modes = {"max": "max", "sum": "sum"}
    mode, activation = options.get("pooling_strategy", "max"), options.get("activation_function", "relu")
    if len(kinds) > 2 or mode not in modes or activation not in ("relu", "log1p_relu"):
        raise ConfigError(
            f"{path.parent.parent.name} has {', '.join(kinds)} with pooling_strategy = {shown(mode)} and "
            f"activation_function = {shown(activation)}; edgeformer has one SpladePooling, max or "
            "sum, relu or log1p_relu."
        )

    def over(head: Any) -> SpladeHead:
        if not isinstance(head, MaskedLMHead):
            raise ConfigError("SpladePooling needs the logits of a masked language model (BertForMaskedLM, …).")
        return SpladeHead(masked_lm=head, pooling=mode, twice=activation == "log1p_relu")

    return PooledStates(head=over, keeps_head=True)


def _read_m3(folder: Path, transformer: Path, hf_config: dict[str, Any]) -> PooledStates:
    tokens = _Tokens(transformer)
    dense = read_pooling(folder)
    vectors = PoolingLayer(size=hf_config.get("hidden_size", 0), activation="identity")
    read = Reading(skipped_tokens=(tokens.require("cls_token"),))
    skipped = tuple(map(tokens.require, M3_SKIPPED))
    head = CombinedHead(
        heads=(
            PoolingHead(pooling="first", normalize=True) if dense is None else dense.pooling,
            TokenWeightsHead(skipped_tokens=tuple(dict.fromkeys(skipped))),
            TokenVectorsHead(layers=(vectors,), normalize=True, query=read, document=read, score="mean"),
        )
    )
    layers = (
        {} if dense is None else {name.replace("pooler", "combined.parts.0"): p for name, p in dense.layers.items()}
    )
    sparse, colbert = (transformer / name for name in M3_HEADS)
    layers |= {"combined.parts.1.linear": sparse, "combined.parts.2.layers.0.linear": colbert}
    return PooledStates(head=lambda _: head, layers=layers)


def _read_stanford(transformer: Path) -> PooledStates:
    path = transformer / METADATA
    said = read_object(path) if os.path.isfile(path) else {}
    if said.get("similarity", "cosine") != "cosine":
        raise ConfigError(
            f"{METADATA} has similarity = {shown(said['similarity'])}; edgeformer has cosine, the products of vectors "
            "of length 1. A model that was trained for another one ranks otherwise, so nothing was exported."
        )
    tokens = _Tokens(transformer)
    skipped = tokens.known(string.punctuation) if said.get("mask_punctuation", True) else ()
    length = said.get("query_maxlen") or QUERY_LENGTH
    attended = bool(said.get("attend_to_mask_tokens"))
    mask = tokens.require("mask_token")
    query, document = (
        tokens.prefix((said.get(f"{role}_token_id") or default) + " ")
        for role, default in (("query", "[unused0]"), ("doc", "[unused1]"))
    )
    size = said.get("dim", 128)
    head = TokenVectorsHead(
        layers=(PoolingLayer(size=size, activation="identity", bias=False),),
        normalize=True,
        query=Reading(**query, max_length=length, expansion=Expansion(token=mask, length=length, attended=attended)),
        document=Reading(**document, max_length=said.get("doc_maxlen"), skipped_tokens=skipped),
    )
    return PooledStates(head=lambda _: head, tensors={"token_vectors.layers.*.linear": "linear"})


def _read_late_interaction(folder: Path, transformer: Path, modules: list[tuple[str, str]]) -> PooledStates:
    kinds = [kind for kind, _ in modules]
    rest = kinds[1:]
    dense = [module for module in modules if module[0] == "Dense"]
    known = ["Dense"] * len(dense)
    forms = [[*known, *more] for more in ([], ["MultiVectorMask"], ["Normalize"], ["MultiVectorMask", "Normalize"])]
    if rest not in forms:
        raise ConfigError(
            f"{folder / 'modules.json'} lists {', '.join(kinds)}; edgeformer has Transformer, any number of Dense, "
            "MultiVectorMask, Normalize, in this order."
        )
    config_path, settings_path = folder / "config_sentence_transformers.json", transformer / "sentence_bert_config.json"
    said = read_options(config_path) if os.path.isfile(config_path) else {}
    own = read_options(settings_path) if os.path.isfile(settings_path) else {}
    old = said.get("model_type") == "ColBERT"  # of PyLate, which masks and normalizes without a module that says so
    mask = next(
        (read_options(folder / place / "config.json") for kind, place in modules if kind == "MultiVectorMask"), {}
    )
    if mask.get("keep_only_token_ids"):
        raise ConfigError(f"{folder.name} keeps the vectors of pictures alone (keep_only_token_ids), and reads none.")
    tokens = _Tokens(transformer)
    words = mask.get("skiplist_words") or ()
    if old:
        words = list(string.punctuation) if said.get("skiplist_words") is None else said["skiplist_words"]
    skipped = tokens.known(words)
    roles = mask.get("skiplist_tasks") or ["document"]
    prompts = said.get("prompts") or {}
    expansion, query_length = _read_expansion(said, own, tokens)
    readings = {}
    for role in ("query", "document"):
        prompt = prompts.get(role) or ""
        prefix: dict[str, Any] = {"prompt": prompt}
        if f"{role}_prefix" in said:
            mark = said[f"{role}_prefix"] or ""
            prefix = tokens.prefix(mark)
            prefix["prompt"] = prefix.get("prompt", "") + prompt.removeprefix(mark)
        readings[role] = Reading(
            **prefix,
            max_length=query_length if role == "query" else own.get("document_length") or said.get("document_length"),
            expansion=expansion if role == "query" else None,
            skipped_tokens=skipped if role in roles else (),
        )
    similarity = str(said.get("similarity_fn_name") or "maxsim").lower()
    if similarity not in SCORES:
        raise ConfigError(
            f"{config_path.name} has similarity_fn_name = {shown(similarity)}; edgeformer has {', '.join(SCORES)} for "
            "vectors of tokens."
        )
    layers = {f"token_vectors.layers.{index}": folder / place for index, (_, place) in enumerate(dense)}
    head = TokenVectorsHead(
        layers=tuple(read_layer(path / "config.json", "token_embeddings") for path in layers.values()),
        normalize=True,  # as MultiVectorEncoder.encode does, whatever the modules are
        query=readings["query"],
        document=readings["document"],
        score=SCORES[similarity],
    )
    return PooledStates(head=lambda _: head, layers=layers)


PYLATE_FIELDS = (
    "query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens",
    "attend_to_mask_tokens", "query_prefix", "document_prefix", "skiplist_words",
)  # fmt: skip
"""Fields of config_sentence_transformers.json by which PyLate's folders are known: they expand queries by default."""


def _read_expansion(
    said: dict[str, Any], own: dict[str, Any], tokens: "_Tokens"
) -> tuple[Expansion | None, int | None]:
    """Return the tokens behind a query, and to how many it is cut; said, own: of the folder and the transformer."""
    length = own.get("query_length")
    options = own.get("query_expansion", said.get("query_expansion"))
    named = "query_expansion" in own or "query_expansion" in said
    if not named and any(field in said for field in PYLATE_FIELDS) and said.get("do_query_expansion") is not False:
        attended = said.get("attend_to_expansion_tokens", said.get("attend_to_mask_tokens"))
        wanted = said.get("query_length") or QUERY_LENGTH
        options = {"strategy": "fixed", "attend": bool(attended), "length": wanted}
    if options is None:
        return None, length or said.get("query_length")
    strategy, wanted = options.get("strategy"), options.get("length")
    if strategy not in ("fixed", "min") or type(wanted) is not int:
        raise ConfigError(
            f"query_expansion is {shown(options)}; edgeformer has the strategies fixed and min, with a length."
        )
    token = options.get("token")
    mask = tokens.require("mask_token") if token is None else tokens.vocabulary.get(token)
    if mask is None:
        raise ConfigError(f"query_expansion has the token {shown(token)}, which the tokenizer does not have.")
    most = wanted if strategy == "fixed" else (max(length, wanted) if length else None)
    return Expansion(token=mask, length=wanted, attended=bool(options.get("attend"))), most


class _Tokens:
    """The token ids of a folder's tokenizer.json, and the names of its special tokens."""

    def __init__(self, folder: Path):
        path, names = folder / "tokenizer.json", folder / "tokenizer_config.json"
        if not os.path.isfile(path):
            raise ConfigError(
                f"{folder} has no tokenizer.json, which says what tokens stand before texts and which are skipped. "
                "Write one: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers."
            )
        data = read_object(path)
        model = data.get("model") or {}
        vocabulary = model.get("vocab") or {}
        if isinstance(vocabulary, list):  # of Unigram: pairs of a token and its score
            vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
        added = {each["content"]: each["id"] for each in data.get("added_tokens") or []}
        self.folder, self.vocabulary = folder, {**vocabulary, **added}
        self.names = read_object(names) if os.path.isfile(names) else {}
        special = folder / "special_tokens_map.json"
        if os.path.isfile(special):
            self.names = read_object(special) | self.names

    def id_of(self, name: str) -> int | None:
        """Return the id of a special token by its name in tokenizer_config.json, such as mask_token."""
        token = self.names.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return None if token is None else self.vocabulary.get(token)

    def require(self, name: str) -> int:
        """Return the id of a special token. Raises ConfigError without one."""
        found = self.id_of(name)
        if found is None:
            raise ConfigError(
                f"the tokenizer in {self.folder} names no {name}, which this kind of embedder needs. Put the tokenizer "
                "that it was trained with beside its config.json."
            )
        return found

    def known(self, words: Any) -> tuple[int, ...]:
        """Return the ids of the words that are tokens."""
        return tuple(dict.fromkeys(self.vocabulary[word] for word in words if word in self.vocabulary))

    def prefix(self, mark: str) -> dict[str, Any]:
        """Return how a mark goes before a text: as a token, if it or its first word is one, else as a text."""
        for token in (mark, *mark.split(None, 1)[:1]):
            if token and token in self.vocabulary:
                return {"prefix": self.vocabulary[token], "prompt": mark[len(token) :]}
        return {"prompt": mark}

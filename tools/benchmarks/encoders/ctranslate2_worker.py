"""Run CTranslate2 behind stdin and stdout for bench_seq2seq.py, in the interpreter of another environment.

    PYTHON tools/benchmarks/encoders/ctranslate2_worker.py CHECKPOINT CONVERTED THREADS COMPUTE_TYPE

The worker converts the T5 checkpoint into the folder CONVERTED, opens it with a compute type (`float32`, `int8`),
prints one JSON line of versions, and then answers each line {"sources": [[id…]…], "new": N, "beams": N} with {"tokens":
[[id…]…], "seconds": S}. It imports nothing of edgeformer.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import ctranslate2
import transformers
from ctranslate2.converters import TransformersConverter


class NumberTokenizer:
    """Stand in for the tokenizer that the converter asks for: each token is named by its id."""

    pad_token, eos_token, unk_token = "0", "1", "2"  # the ids of every T5

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return ids by name."""
        return {str(token): token for token in range(self.vocab_size)}

    def convert_ids_to_tokens(self, token: int) -> str:
        """Return the name of one id."""
        return str(token)


class NumberConverter(TransformersConverter):  # type: ignore[misc]  # ctranslate2 is untyped, or absent
    """Convert with a vocabulary of numbers."""

    def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **kwargs: Any) -> NumberTokenizer:
        """Return the stand-in for the tokenizer that the folder lacks."""
        return NumberTokenizer(transformers.AutoConfig.from_pretrained(model_name_or_path).vocab_size)


def translate(translator: ctranslate2.Translator, request: dict[str, Any]) -> dict[str, Any]:
    """Translate one batch. The clock covers CTranslate2 alone, not the conversion between ids and names."""
    sources = [[str(token) for token in source] for source in request["sources"]]
    start = time.perf_counter()
    results = translator.translate_batch(
        sources,
        beam_size=request["beams"],
        max_decoding_length=request["new"],
        max_input_length=0,  # no limit
        max_batch_size=0,  # never split
    )
    seconds = time.perf_counter() - start
    return {"tokens": [[int(token) for token in result.hypotheses[0]] for result in results], "seconds": seconds}


def serve(
    requests: Iterable[str], checkpoint: str, converted: str, threads: int, compute_type: str
) -> Iterable[dict[str, Any]]:
    """Yield the versions first, and then an answer to each request."""
    NumberConverter(checkpoint).convert(converted)
    translator = ctranslate2.Translator(
        converted, device="cpu", compute_type=compute_type, intra_threads=threads, inter_threads=1
    )
    versions = {"ctranslate2": ctranslate2.__version__, "transformers": transformers.__version__}
    yield versions | {"compute_type": translator.compute_type}
    for line in requests:
        yield translate(translator, json.loads(line))


def main() -> None:
    """Serve until stdin ends."""
    checkpoint, converted, threads, compute_type = sys.argv[1:]
    # Answers go to the original stdout; what libraries print there goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for answer in serve(sys.stdin, checkpoint, converted, int(threads), compute_type):
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

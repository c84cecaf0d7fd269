"""Write text with a bundle in onnxruntime-genai, which has bindings for Python, C#, C++ and Java.

    pip install onnxruntime-genai
    python genai.py BUNDLE "Once upon a time"

With `--ids`, prompt and output are token ids: python genai.py BUNDLE "5 6 7" --ids
"""

import argparse
import json
import os
from collections.abc import Iterator

import onnxruntime_genai as og


def generate(model: og.Model, prompt: list[int], new_tokens: int) -> Iterator[int]:
    """Yield the most likely next token, again and again; the last may be one that ends the text."""
    params = og.GeneratorParams(model)
    # The cache is allocated for max_length tokens, prompt included.
    params.set_search_options(max_length=len(prompt) + new_tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def main() -> None:
    """Print the text as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("prompt")
    parser.add_argument("--ids", action="store_true")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    config = og.Config(args.bundle)
    if library := os.environ.get("EDGEFORMER_KERNELS_LIBRARY"):  # edgeformer's own kernels
        options = {"custom_ops_library": library}  # may also stand in genai_config.json
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = og.Model(config)
    if args.ids:
        print(*generate(model, [int(word) for word in args.prompt.split()], args.new_tokens))
        return
    tokenizer = og.Tokenizer(model)
    stream = tokenizer.create_stream()  # holds back bytes until they make a character
    print(args.prompt, end="")
    for token in generate(model, tokenizer.encode(args.prompt).tolist(), args.new_tokens):
        print(stream.decode(token), end="", flush=True)
    print()


if __name__ == "__main__":
    main()

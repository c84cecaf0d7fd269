"""Answer about pictures with a bundle of Qwen2.5-VL, Qwen3-VL or Qwen3.5 in onnxruntime-genai.

    pip install onnxruntime-genai
    python genai.py BUNDLE "What is in the picture?" cat.jpg

Its own processor makes token ids and pixel values. `generate` takes them from any.
"""

import argparse
import json
from collections.abc import Iterator

import onnxruntime_genai as og


def generate(model: og.Model, inputs: og.NamedTensors, new_tokens: int) -> Iterator[int]:
    """Yield the most likely next token, again and again; the last may be one that ends the text.

    inputs: `input_ids` int32, `pixel_values`, `image_grid_thw` and `num_image_tokens`.
    """
    params = og.GeneratorParams(model)
    length = inputs["input_ids"].shape()[1]
    params.set_search_options(max_length=length + new_tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.set_inputs(inputs)
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def main() -> None:
    """Print the answer as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("prompt")
    parser.add_argument("pictures", nargs="+")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    model = og.Model(args.bundle)
    processor, tokenizer = model.create_multimodal_processor(), og.Tokenizer(model)
    parts = [*({"type": "image"} for _ in args.pictures), {"type": "text", "text": args.prompt}]
    messages = json.dumps([{"role": "user", "content": parts}])
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    stream = processor.create_stream()
    for token in generate(model, processor(prompt, images=og.Images.open(*args.pictures)), args.new_tokens):
        print(stream.decode(token), end="", flush=True)
    print()


if __name__ == "__main__":
    main()

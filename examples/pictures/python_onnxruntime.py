"""Answer about pictures with a bundle, using onnxruntime and transformers' processor, without edgeformer.

    pip install onnxruntime transformers pillow numpy
    python python_onnxruntime.py BUNDLE "What is left of the circle?" shapes.png

`answer` takes token ids and what the tower reads, and needs onnxruntime and numpy alone. Some models are not for this
program: the states of LLaVA-NeXT's tiles are put together by the picture's size, and towers of LFM2-VL, Gemma 4,
Pixtral, Mistral 3 and PaddleOCR-VL read patches in another order than transformers' processors return them.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

PICTURES = ("aspect_tiles", "fixed_size", "grid", "tiles")
"""Kinds of processors whose values the tower reads as they are, and whose states stand in the order of the tower."""
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


def positions_of(ids: np.ndarray, token: int, grids: Sequence[Any]) -> np.ndarray:
    """Return positions by time, height and width [3, 1, S] for models that have them (Qwen).

    Text behind a picture goes on from the largest position, which is less than its place. Attention sees differences
    alone, so all are moved until the text behind the last picture stands at its place, where steps go on.
    """
    positions = np.tile(np.arange(len(ids)), (3, 1))
    starts, behind = np.flatnonzero(ids == token), 0
    for rows, columns in grids:
        start = starts[behind]
        row, column = np.divmod(np.arange(rows * columns), columns)
        end, first = start + len(row), positions[0, start]
        positions[:, start:end] = first + np.stack((np.zeros_like(row), row, column))
        positions[:, end:] -= len(row) - max(rows, columns)
        behind += len(row)
    moved: np.ndarray = positions + (len(ids) - 1 - positions[0, -1])
    return moved[:, None]


def blocks_of(ids: np.ndarray, counts: Sequence[int], seen: np.ndarray, whole: bool) -> Iterator[tuple[int, int, bool]]:
    """Yield pieces of a prompt: start, end, and whether it is a block, whose tokens all see each other."""
    starts = np.flatnonzero(seen)[np.cumsum([0, *counts[:-1]])]
    before = 0
    for start, count in [(0, len(ids))] if whole else zip(starts, counts, strict=True):
        if start > before:
            yield before, int(start), False
        before = int(start) + count
        yield int(start), before, True
    if before < len(ids):
        yield before, len(ids), False


def answer(bundle: Path, prompt: Sequence[int], inputs: Mapping[str, np.ndarray], most: int) -> Iterator[int]:
    """Yield the top-1 token of each step until an end-of-text token.

    prompt: with the placeholder for each state of a picture. inputs: `pixel_values` and, where there is one,
    `image_grid_thw` of all pictures, as transformers' processor returns them.
    """
    manifest = json.loads((bundle / "edgeformer.json").read_text(encoding="utf-8"))
    if manifest["plan"]["cache_form"] == "static":
        raise SystemExit("This bundle wants caches of a fixed size; see python_onnxruntime.py.")
    if manifest["pictures"]["kind"] not in PICTURES:
        raise SystemExit("This example does not prepare pictures as this model reads them.")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    graphs = {form: bundle / graph["file"] for form, graph in manifest["graphs"].items()}
    tower, embed, reader, decoder = (
        ort.InferenceSession(graphs[form], options, providers=["CPUExecutionProvider"])
        for form in ("vision_encoder", "embed_tokens", "embedding_decoder", "model")
    )
    ids, token = np.array(prompt, np.int64), manifest["placeholder"]["token"]
    seen = ids == token
    embeddings = embed.run(["inputs_embeds"], {"input_ids": ids[None]})[0]
    pictures = runs_of(inputs, tower.get_inputs()[-1].name)
    runs = [tower.run(["image_features"], picture)[0] for picture in pictures]
    states = [found.reshape(-1, found.shape[-1]) for found in runs]
    features = np.concatenate(states)
    if len(features) != seen.sum():
        raise SystemExit(f"The prompt has {seen.sum()} placeholders for {len(features)} states of pictures.")
    embeddings[0, seen, : features.shape[1]] = features  # rows may be wider; the rest is of the placeholder

    cache = {}
    for past in decoder.get_inputs():
        if past.name.startswith("past_"):  # the symbols are tokens, none so far; states of fixed size are zeros
            sizes = [0 if isinstance(size, str) else size for size in past.shape[1:]]
            cache[past.name] = np.zeros((1, *sizes), DTYPES[past.type])
    presents = [name.replace("past_key_values", "present").replace("past_", "present_") for name in cache]

    def run(session: ort.InferenceSession, inputs: dict[str, np.ndarray], length: int) -> int:
        """Run tokens behind the cache, and keep what it returns; length: of the text then."""
        mask = {"attention_mask": np.ones((1, length), np.int64)}
        logits, *kept = session.run(["logits", *presents], inputs | mask | cache)
        cache.update(zip(cache, kept, strict=True))
        return int(logits[0, -1].argmax())

    more = {}
    if "position_ids" in {each.name for each in reader.get_inputs()}:
        grids = []
        for (_, rows, columns), found in zip(inputs["image_grid_thw"].tolist(), states, strict=True):
            side = isqrt(rows * columns // len(found))  # of the square of patches that is one state
            grids.append((rows // side, columns // side))
        more["position_ids"] = positions_of(ids, token, grids)
    pieces, both_ways = [(0, len(ids), True)], manifest["model"].get("bidirectional")
    if both_ways:  # a picture in Gemma 3, a whole prompt in PaliGemma
        pieces = list(blocks_of(ids, [len(each) for each in states], seen, both_ways == "prompt"))
    for start, end, is_read in pieces:
        if is_read:
            found = run(reader, {"inputs_embeds": embeddings[:, start:end], **more}, end)
        else:
            found = run(decoder, {"input_ids": ids[None, start:end]}, end)
    for length in range(len(ids) + 1, len(ids) + 1 + most):
        if found in manifest["tokens"]["eos"]:
            return
        yield found
        found = run(decoder, {"input_ids": np.array([[found]], np.int64)}, length)


def runs_of(tower_inputs: Mapping[str, np.ndarray], name: str = "image_grid_thw") -> list[dict[str, np.ndarray]]:
    """Return what the tower reads in each run, of what transformers' processor makes of all pictures.

    name: of the tower's input with the rows and columns of patches, which is `grid_thw` in Qwen2-VL.
    """
    values, grids = tower_inputs["pixel_values"], tower_inputs.get("image_grid_thw")
    if grids is None:
        return [{"pixel_values": values[index : index + 1]} for index in range(len(values))]
    ends = np.cumsum([0, *grids.prod(1)])
    return [
        {"pixel_values": values[start:end], name: grid[None]}
        for (start, end), grid in zip(pairwise(ends), grids, strict=True)
    ]


def main() -> None:
    """Print the answer."""
    import transformers
    from PIL import Image

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("pictures", nargs="+")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    processor = transformers.AutoProcessor.from_pretrained(args.bundle)
    parts = [*({"type": "image"} for _ in args.pictures), {"type": "text", "text": args.prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    inputs = processor(text=text, images=[Image.open(each) for each in args.pictures], return_tensors="np")
    tokens = answer(args.bundle, inputs["input_ids"][0].tolist(), inputs, args.new_tokens)
    print(processor.tokenizer.decode(list(tokens), skip_special_tokens=True))


if __name__ == "__main__":
    main()

"""Every argument of every public call, given what it does not take, is refused by its name.

`CALLS` has one line for each argument. Each is given all of `VALUES`: those that the line lists must work, and every
other one must end in an EdgeformerError that names the argument.
"""

import numpy as np
import pytest
from cached_bundles import copy_of_preset

import edgeformer.runtime as runtime
from edgeformer.errors import EdgeformerError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import CudaOptions, Engine, GenerationConfig, load

VALUES = {
    "None": lambda: None,
    "5": lambda: 5,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "True": lambda: True,
    "bytes": lambda: b"x",
    "empty": lambda: "",
    "x": lambda: "x",
    "surrogate": lambda: "\udc00",
    "dict": lambda: {"a": 1},
    "{}": lambda: {},
    "set": lambda: {5},
    "generator": lambda: (each for each in [5, 6]),
    "[None]": lambda: [None],
    "[1.5]": lambda: [1.5],
    "[x, 5]": lambda: ["x", 5],
    "[]": lambda: [],
    "[[]]": lambda: [[]],
    "object": object,
    "array of no axis": lambda: np.array(5),
    "array of two": lambda: np.zeros((2, 2)),
    "1e30": lambda: 10**30,
    "[True]": lambda: [True],
    "[5 as text]": lambda: ["5"],
    "function": lambda: len,
    "[-1]": lambda: [-1],
    "[1e30]": lambda: [10**30],
}
MESSAGE = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def have(tmp_path_factory):
    """One model of each kind, an engine of each kind, and the folders."""
    folder = tmp_path_factory.mktemp("called")
    names = {"lm": "tiny-llama", "encoder": "tiny-embed", "seq2seq": "tiny-translate"}
    models = {kind: load(copy_of_preset(name, folder / name, verify=None)) for kind, name in names.items()}
    with Engine(models["lm"], max_rows=2) as engine, Engine(models["encoder"]) as texts:
        yield {**models, "engine": engine, "texts": texts, "folder": folder, "tokenizer": models["lm"].tokenizer}


def stream(have, **options):
    return have["engine"].submit("x", max_new_tokens=1, **options)


CALLS = {
    # argument: (call, name in the error, values that it takes)
    "new_decoder(batch_size)": (lambda h, v: h["lm"].new_decoder(v, 8), "batch_size", {"5"}),
    "new_decoder(capacity)": (lambda h, v: h["lm"].new_decoder(1, v), "capacity", {"5"}),
    "forward": (lambda h, v: h["lm"].forward(v), "prompt", {"x"}),
    "generate(num_return_sequences)": (
        lambda h, v: h["lm"].generate("x", max_new_tokens=1, temperature=1, num_return_sequences=v),
        "num_return_sequences", {"5"},
    ),
    "generate(config)": (lambda h, v: h["lm"].generate("x", max_new_tokens=1, config=v), "config", {"None"}),
    "generate(logits_processors)": (
        lambda h, v: h["lm"].generate("x", max_new_tokens=1, logits_processors=v), "logits_processors", {"[]"},
    ),
    "stream(prompt)": (lambda h, v: list(h["lm"].stream(v, max_new_tokens=1)), "prompt", {"x"}),
    "chat(messages)": (lambda h, v: list(h["lm"].chat(v, max_new_tokens=1)), "messages|conversation|prompt", {"[]"}),
    "chat(allow_special)": (
        lambda h, v: list(h["lm"].chat(MESSAGE, allow_special=v, max_new_tokens=1)), "allow_special", {"True"},
    ),
    "chat(enable_thinking)": (
        lambda h, v: list(h["lm"].chat(MESSAGE, enable_thinking=v, max_new_tokens=1)), "enable_thinking", {"None"},
    ),
    "chat(reasoning_effort)": (
        lambda h, v: list(h["lm"].chat(MESSAGE, reasoning_effort=v, max_new_tokens=1)), "reasoning_effort", {"None"},
    ),
    "new_row": (lambda h, v: h["lm"].new_row(v), "prompt", {"x"}),
    "encode": (lambda h, v: h["tokenizer"].encode(v), "text", {"empty", "x"}),
    "encoding": (lambda h, v: h["tokenizer"].encoding(v), "text", {"empty", "x"}),
    "decode": (lambda h, v: h["tokenizer"].decode(v), "ids", {"[]"}),
    "encode_pair": (lambda h, v: h["tokenizer"].encode_pair(v, "x"), "first text", {"empty", "x"}),
    "special_token": (lambda h, v: h["tokenizer"].special_token(v), "name", {"empty", "x"}),
    "encode_chat(tools)": (lambda h, v: h["tokenizer"].encode_chat(MESSAGE, tools=v), "tools", {"[]"}),
    "encode_chat(chat_template_kwargs)": (
        lambda h, v: h["tokenizer"].encode_chat(MESSAGE, chat_template_kwargs=v), "chat_template_kwargs",
        {"None", "{}"},
    ),
    "encode_chat(add_generation_prompt)": (
        lambda h, v: h["tokenizer"].encode_chat(MESSAGE, add_generation_prompt=v), "add_generation_prompt", {"True"},
    ),
    "render_chat": (lambda h, v: h["tokenizer"].render_chat(v), "messages", {"[]"}),
    "run": (lambda h, v: h["encoder"].run(v), "text", {"[5 as text]"}),
    "run(outputs)": (lambda h, v: h["encoder"].run(["x"], v), "output", {"None"}),
    "embed": (lambda h, v: h["encoder"].embed(v), "text", {"empty", "x", "[5 as text]"}),
    "embed(batch_size)": (lambda h, v: h["encoder"].embed(["x"], batch_size=v), "batch_size", {"5", "1e30"}),
    "embed(truncate)": (lambda h, v: h["encoder"].embed("x", truncate=v), "truncate", {"True"}),
    "embed(prompt)": (lambda h, v: h["encoder"].embed("x", prompt=v), "prompt", {"None", "empty", "x"}),
    "embed(prompt_name)": (lambda h, v: h["encoder"].embed("x", prompt_name=v), "prompt_name", {"None"}),
    "embeddings": (lambda h, v: h["encoder"].embeddings(v), "text", {"empty", "x", "[5 as text]"}),
    "embeddings(forms)": (lambda h, v: h["encoder"].embeddings("x", forms=v), "forms", {"None"}),
    "embeddings(query)": (lambda h, v: h["encoder"].embeddings("x", query=v), "query", {"True"}),
    "embeddings(truncate)": (lambda h, v: h["encoder"].embeddings("x", truncate=v), "truncate", {"True"}),
    "sparse_tokens": (lambda h, v: h["encoder"].sparse_tokens(v), "vector", set()),
    "max_sim": (lambda h, v: h["encoder"].max_sim("x", v), "documents", set()),
    "embed(dimensions)": (lambda h, v: h["encoder"].embed("x", dimensions=v), "dimensions", {"None", "5"}),
    "classify": (lambda h, v: h["encoder"].classify(v), "no classes", set()),
    "answer": (lambda h, v: h["encoder"].answer(v, "x"), "no questions", set()),
    "spans": (lambda h, v: h["encoder"].spans(v), "labels no tokens", set()),
    "score": (lambda h, v: h["encoder"].score(v), "scores no pairs", set()),
    "rank": (lambda h, v: h["encoder"].rank("x", v), "ranks nothing", set()),
    "fill_mask": (lambda h, v: h["encoder"].fill_mask(v), "no masks", set()),
    "seq2seq generate": (
        lambda h, v: h["seq2seq"].generate(v, max_new_tokens=1), "source|text", {"empty", "x", "[5 as text]"},
    ),
    "seq2seq generate(prompt)": (
        lambda h, v: h["seq2seq"].generate("x", prompt=v, max_new_tokens=1), "prompt", {"None", "empty", "x"},
    ),
    "seq2seq generate(num_return_sequences)": (
        lambda h, v: h["seq2seq"].generate("x", num_return_sequences=v, max_new_tokens=1),
        "num_return_sequences", set(),
    ),
    "seq2seq generate(config)": (
        lambda h, v: h["seq2seq"].generate("x", config=v, max_new_tokens=1), "config", {"None"},
    ),
    "seq2seq generate(num_beams)": (
        lambda h, v: h["seq2seq"].generate("x", num_beams=v, max_new_tokens=1), "num_beams", {"5"},
    ),
    "seq2seq stream": (lambda h, v: list(h["seq2seq"].stream(v, max_new_tokens=1)), "source|text", {"empty", "x"}),
    "seq2seq stream(num_beams)": (
        lambda h, v: list(h["seq2seq"].stream("x", num_beams=v, max_new_tokens=1)), "beams", set(),
    ),
    "translate": (
        lambda h, v: h["seq2seq"].translate(v, "de", "en", max_new_tokens=1),
        "text|source", {"empty", "x", "[5 as text]"},
    ),
    "translate(source_language)": (
        lambda h, v: h["seq2seq"].translate("x", v, "en", max_new_tokens=1), "language|translate", set(),
    ),
    "translate(target_language)": (
        lambda h, v: h["seq2seq"].translate("x", "de", v, max_new_tokens=1), "language|translate", set(),
    ),
    "cross_attentions": (lambda h, v: h["seq2seq"].cross_attentions("x", v), "no alignment graph", set()),
    "transcript": (lambda h, v: h["seq2seq"].transcript(v), "takes text, not speech", set()),
    "transcribe": (lambda h, v: h["seq2seq"].transcribe(v), "takes text, not speech", set()),
    "uses_beam_search": (lambda h, v: h["seq2seq"].uses_beam_search(v), "config", {"None"}),
    "submit": (lambda h, v: h["engine"].submit(v, max_new_tokens=1).finish(60), "prompt", {"x"}),
    "submit(config)": (lambda h, v: stream(h, config=v).finish(60), "config", {"None"}),
    "submit(logits_processors)": (lambda h, v: stream(h, logits_processors=v).finish(60), "logits_processors", {"[]"}),
    "finish(timeout)": (
        lambda h, v: [each := stream(h), each.finish(), each.finish(v)], "timeout", {"None", "0", "5", "1.5", "1e30"},
    ),
    "add_listener": (lambda h, v: stream(h).add_listener(v), "callback", {"function"}),
    "engine embed": (lambda h, v: h["texts"].embed(v), "text", {"empty", "x", "[5 as text]"}),
    "engine embed(truncate)": (lambda h, v: h["texts"].embed("x", truncate=v), "truncate", {"True"}),
    "submit_texts": (
        lambda h, v: [each.result(60) for each in h["texts"].submit_texts(v)], "text", {"[]", "[5 as text]"},
    ),
    "submit_pairs": (lambda h, v: h["texts"].submit_pairs(v), "pairs|scores no pairs", set()),
    "Engine(model)": (lambda h, v: Engine(v), "model", set()),
    "Engine(max_rows)": (lambda h, v: Engine(h["lm"], max_rows=v).close(), "max_rows", {"5"}),
    "Engine(max_queue)": (lambda h, v: Engine(h["lm"], max_queue=v).close(), "max_queue", {"5", "1e30"}),
    "Engine(memory)": (lambda h, v: Engine(h["lm"], memory=v).close(), "memory", {"None", "1e30"}),
    "load": (lambda h, v: load(v), "path|folder|bundle", set()),
    "load(provider)": (lambda h, v: load(h["folder"] / "tiny-embed", provider=v), "provider", set()),
    "load(threads)": (lambda h, v: load(h["folder"] / "tiny-embed", threads=v), "threads", {"None"}),
    "load(draft)": (
        lambda h, v: load(h["folder"] / "tiny-llama", draft=v), "draft|path|folder|bundle", {"None"},
    ),
    "load_session": (lambda h, v: h["lm"].load_session(v), "path|session", set()),
    "use_draft": (lambda h, v: h["lm"].use_draft(v), "draft", {"None"}),
    "load(provider_options)": (
        lambda h, v: load(h["folder"] / "tiny-embed", provider_options=v), "provider_options", {"None"},
    ),
    "CudaOptions(use_tf32)": (lambda h, v: CudaOptions(use_tf32=v), "use_tf32", {"True"}),
    "CudaOptions(gpu_mem_limit)": (lambda h, v: CudaOptions(gpu_mem_limit=v), "gpu_mem_limit", {"None", "5"}),
    "CudaOptions(arena_extend_strategy)": (
        lambda h, v: CudaOptions(arena_extend_strategy=v), "arena_extend_strategy", set(),
    ),
    "load(kernels)": (lambda h, v: load(h["folder"] / "tiny-embed", kernels=v), "kernels", {"True"}),
    "Manifest.read": (lambda h, v: Manifest.read(v), "folder|bundle", set()),
    "from_dict": (lambda h, v: GenerationConfig.from_dict(v), "generation config", {"dict", "{}"}),
    "from_folder": (lambda h, v: GenerationConfig.from_folder(v), "folder|generation_config", set()),
    "override": (lambda h, v: GenerationConfig().override(v), "option", {"{}"}),
    "benchmark": (lambda h, v: runtime.benchmark(v), "folder|bundle", set()),
    "benchmark(prompts)": (
        lambda h, v: runtime.benchmark(h["folder"] / "tiny-llama", prompts=v, batch_sizes=[0]),
        "prompt|batch size|length", set(),
    ),
    "benchmark(rounds)": (
        lambda h, v: runtime.benchmark(h["folder"] / "tiny-llama", rounds=v, prompts=[0]), "rounds|prompt is 0", set(),
    ),
    "benchmark(new_tokens)": (
        lambda h, v: runtime.benchmark(h["folder"] / "tiny-llama", new_tokens=v, prompts=[10**6]),
        "new tokens|new_tokens|1000000", set(),
    ),
    "optimize": (lambda h, v: runtime.optimize(v), "folder|bundle", set()),
}  # fmt: skip
MORE_THAN_CORES = {"load(threads)": {"5"}}
"""Values that depend on the machine."""


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_that_is_none_is_refused_by_its_name(have, name):
    call, argument, taken = CALLS[name]
    wrong = []
    for key, make in VALUES.items():
        try:
            call(have, make())
        except EdgeformerError as error:
            text = str(error).splitlines()[0]
            if key in taken or not any(part in text for part in argument.split("|")):
                wrong.append(f"{key}: {text}")
        except Exception as error:
            wrong.append(f"{key}: {type(error).__name__}: {error}")
        else:
            if key not in taken | MORE_THAN_CORES.get(name, set()):
                wrong.append(f"{key}: it was taken")
    assert not wrong, "\n".join(wrong)


def test_the_tests_name_every_public_call(have):
    """A new public method of a model, an engine or a tokenizer needs a line, or a reason here."""
    covered = " ".join(CALLS)
    without_arguments = {"require_tokenizer", "statistics", "close", "events", "poll", "cancel", "cancelled", "ended"}
    elsewhere = {
        # of the machinery behind public calls, or tested by their own files
        "submit_pictures",
        "request", "translation_of", "run_encoder", "run_encoder_inputs", "encoder_inputs", "encode_sources",
        "start_prompt", "encode_text", "with_prompt", "embed_encoded", "is_list", "push", "end", "encode_truncated",
        "encode_source", "save_session", "transcription", "encode_windows", "row_adapters", "score_encoded",
        "require_scores", "require_vectors", "new_draft_model", "drafts_by_layer", "drafts_by_model", "new_drafts",
        "template_variables", "use_templates", "encode_marks", "by_length", "part", "run_encoded",
        "media", "see", "see_prompts", "max_sim_and_tokens",
        "opens_thinking", "thinking_variables",
    }  # fmt: skip
    missing = {
        f"{type(each).__name__}.{name}"
        for each in (have["lm"], have["encoder"], have["seq2seq"], have["engine"], have["tokenizer"])
        for name in dir(type(each))
        if not name.startswith("_") and callable(getattr(type(each), name))
        if name not in covered and name not in without_arguments | elsewhere
    }
    assert not missing

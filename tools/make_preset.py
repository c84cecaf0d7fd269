"""Write the preset `tiny-llama`: config, tokenizer, chat template. Its weights are random for now, made from a seed.

    python tools/make_preset.py

The tokenizer is a byte-level BPE trained on sentences that this file makes, so that nothing is downloaded.
"""

import json
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent.parent / "edgeformer" / "presets" / "tiny-llama"
VOCABULARY = 480
END, START, STOP = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

PRESET = {
    "description": "a 4.4 M parameter Llama (GQA, RoPE, SwiGLU, tied head) with random weights, to try the tools",
    "random_weights": 0,
}

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "float32",
}


def sentences() -> list[str]:
    """Plain English with some variety of words: names, animals, places, deeds, numbers."""
    names = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack"]
    animals = ["dog", "cat", "bird", "horse", "fox", "rabbit", "bear", "mouse", "fish", "duck"]
    adjectives = ["little", "old", "happy", "quiet", "brave", "clever", "hungry", "friendly", "tired", "curious"]
    places = ["garden", "forest", "river", "house", "market", "school", "mountain", "village", "kitchen", "harbour"]
    deeds = [
        "walked to",
        "looked for",
        "played in",
        "ran away from",
        "came back to",
        "dreamed about",
        "went into",
        "waited near",
    ]
    stories = [
        f"Once upon a time, a {adjective} {animal} {deed} the {place}. {name} was there and said: “Thank you!”"
        for adjective, animal, (name, place), deed in product(
            adjectives, animals, zip(names, places, strict=True), deeds
        )
    ]
    sums = [f"{a} + {b} = {a + b}. What is {a + b} - {b}? It is {a}." for a, b in product(range(0, 100, 7), repeat=2)]
    return stories + sums


def train_tokenizer() -> Tokenizer:
    """Train the byte-level BPE; every byte has a token, so any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    return tokenizer


def main() -> None:
    """Write the folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    ids = {
        "bos_token_id": 0,
        "eos_token_id": [tokenizer.token_to_id(END), tokenizer.token_to_id(STOP)],
        "pad_token_id": 0,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    vocabulary = {**CONFIG, "vocab_size": VOCABULARY}
    for name, data in {
        "config.json": vocabulary,
        "generation_config.json": ids,
        "tokenizer_config.json": tokenizer_config,
        "preset.json": PRESET,
    }.items():
        (FOLDER / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    (FOLDER / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    print(f"wrote {FOLDER}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()

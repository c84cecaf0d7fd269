"""The config.json of well-known checkpoints, as transformers 4 wrote them, is read as the model that it belongs to.

The files in `real_configs/` were typed from memory, not downloaded. Each leads to the number of parameters that its hub
page is remembered to state, which supports them; for CodeGen, StarCoderBase and BioGPT the number is edgeformer's own
count, which shows changes only. There are no weights.
"""

import json
import math
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from rows import FAMILIES
from slow_rows import slow_unless

from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.errors import ConfigError
from edgeformer.families import read_model_config

FOLDER = Path(__file__).with_name("real_configs")


@dataclass(frozen=True)
class Expected:
    """Size of a model, and per layer with attention (a list, or one value for all) its windows and rotary bases."""

    parameters: int
    layers: int
    heads: tuple[int, int, int]  # of queries, of keys and values, and their width
    context_length: int
    tied: bool
    windows: Any = None
    bases: Any = 10000.0


EXPECTED = {
    "ByteDance-Seed/Seed-OSS-36B-Instruct": Expected(36_151_104_512, 64, (80, 8, 128), 524288, False, bases=1e7),
    "CohereForAI/c4ai-command-r-v01": Expected(34_980_831_232, 40, (64, 64, 128), 8192, True, bases=8e6),
    "CohereForAI/c4ai-command-r7b-12-2024": Expected(
        8_028_033_024, 32, (32, 8, 128), 8192, True,
        windows=[4096, 4096, 4096, None] * 8, bases=[5e4, 5e4, 5e4, None] * 8,
    ),
    "EleutherAI/gpt-j-6b": Expected(6_050_882_784, 28, (16, 16, 256), 2048, False),
    "EleutherAI/gpt-neo-125m": Expected(
        125_198_592, 12, (12, 12, 64), 2048, True, windows=[None, 256] * 6, bases=None
    ),
    "EleutherAI/pythia-160m": Expected(162_322_944, 12, (12, 12, 64), 2048, False),
    "HuggingFaceTB/SmolLM2-135M": Expected(134_515_008, 30, (9, 3, 64), 8192, True, bases=1e5),
    "HuggingFaceTB/SmolVLM-256M-Instruct": Expected(162_974_016, 30, (9, 3, 64), 8192, False, bases=1e5),
    "HuggingFaceTB/SmolLM3-3B": Expected(
        3_075_098_624, 36, (16, 4, 128), 65536, True, bases=[5e6, 5e6, 5e6, None] * 9
    ),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": Expected(1_279_391_488, 30, (32, 8, 64), 65536, True, bases=1e6),
    "LiquidAI/LFM2-8B-A1B": Expected(8_339_930_560, 24, (32, 8, 64), 128000, True, bases=1e6),
    "LiquidAI/LFM2-1.2B": Expected(1_170_340_608, 16, (32, 8, 64), 128000, True, bases=1e6),
    "Qwen/Qwen1.5-MoE-A2.7B": Expected(14_315_784_192, 24, (16, 16, 128), 8192, False, bases=1e6),
    "Qwen/Qwen2-VL-2B-Instruct": Expected(1_543_714_304, 28, (12, 2, 128), 32768, True, bases=1e6),
    "Qwen/Qwen2.5-VL-3B-Instruct": Expected(3_085_938_688, 36, (16, 2, 128), 128000, True, bases=1e6),
    "Qwen/Qwen2.5-0.5B": Expected(494_032_768, 24, (14, 2, 64), 32768, True, bases=1e6),
    "Qwen/Qwen2.5-0.5B-Instruct": Expected(494_032_768, 24, (14, 2, 64), 32768, True, bases=1e6),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Expected(79_674_391_296, 48, (16, 2, 256), 262144, False, bases=1e7),
    "Qwen/Qwen3.5-0.8B": Expected(752_393_024, 24, (8, 2, 256), 262144, True, bases=1e7),
    "Qwen/Qwen3-0.6B": Expected(596_049_920, 28, (16, 8, 128), 40960, True, bases=1e6),
    "Salesforce/codegen-350M-mono": Expected(356_712_448, 20, (16, 16, 64), 2048, False),
    "THUDM/GLM-4-9B-0414": Expected(9_400_279_040, 40, (32, 2, 128), 32768, False),
    "THUDM/glm-4-9b-chat-hf": Expected(9_399_951_360, 40, (32, 2, 128), 131072, False),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": Expected(1_100_048_384, 22, (32, 4, 64), 2048, False),
    "allenai/OLMo-1B-hf": Expected(1_176_764_416, 16, (16, 16, 128), 2048, True),
    "Qwen/Qwen3-30B-A3B": Expected(30_532_122_624, 48, (32, 4, 128), 40960, False, bases=1e6),
    "allenai/OLMoE-1B-7B-0924": Expected(6_919_161_856, 16, (16, 16, 128), 4096, False),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": Expected(46_702_792_704, 32, (32, 8, 128), 32768, False, bases=1e6),
    "allenai/OLMo-2-0425-1B": Expected(1_484_916_736, 16, (16, 16, 128), 4096, False, bases=5e5),
    "allenai/Olmo-3-7B-Instruct": Expected(
        7_298_011_136, 32, (32, 32, 128), 65536, False, windows=[4096, 4096, 4096, None] * 8, bases=5e5
    ),
    "arcee-ai/AFM-4.5B": Expected(4_619_184_640, 36, (20, 4, 128), 65536, False),
    "baidu/ERNIE-4.5-0.3B-PT": Expected(360_748_032, 18, (16, 2, 128), 131072, True, bases=5e5),
    "bigcode/starcoder2-3b": Expected(
        3_030_371_328, 30, (24, 2, 128), 16384, True, windows=4096, bases=999999.4420358813
    ),
    "bigcode/starcoderbase-1b": Expected(1_137_207_296, 24, (16, 1, 128), 8192, True, bases=None),
    "bigscience/bloom-560m": Expected(559_214_592, 24, (16, 16, 64), 2048, True, bases=None),
    "deepseek-ai/DeepSeek-V2-Lite": Expected(15_706_484_224, 27, (16, 16, 192), 163840, False),
    "facebook/MobileLLM-R1-140M": Expected(140_248_512, 15, (9, 3, 64), 32768, True, bases=5e5),
    "facebook/cwm": Expected(
        32_581_097_472, 64, (48, 8, 128), 131072, False, windows=[None, 8192, 8192, 8192] * 16, bases=1e6
    ),
    "facebook/opt-125m": Expected(125_239_296, 12, (12, 12, 64), 2048, True, bases=None),
    "google/gemma-2-2b": Expected(2_614_341_888, 26, (8, 4, 256), 8192, True, windows=[4096, None] * 13),
    "google/gemma-2b": Expected(2_506_172_416, 18, (8, 1, 256), 8192, True),
    "google/gemma-3-1b-pt": Expected(
        999_885_952, 26, (4, 1, 256), 32768, True,
        windows=([512] * 5 + [None]) * 4 + [512] * 2, bases=([1e4] * 5 + [1e6]) * 4 + [1e4] * 2,
    ),
    "google/gemma-3-4b-it": Expected(
        3_880_263_168, 34, (8, 4, 256), 131072, True,
        windows=([1024] * 5 + [None]) * 5 + [1024] * 4, bases=([1e4] * 5 + [1e6]) * 5 + [1e4] * 4,
    ),
    "google/gemma-3n-E2B-it": Expected(
        4_435_182_688, 30, (8, 2, 256), 32768, True, windows=([512] * 4 + [None]) * 6, bases=([1e4] * 4 + [1e6]) * 6
    ),
    "google/gemma-3-270m": Expected(
        268_098_176, 18, (4, 1, 256), 32768, True, windows=([512] * 5 + [None]) * 3, bases=([1e4] * 5 + [1e6]) * 3
    ),
    "ibm-granite/granite-3.0-1b-a400m-instruct": Expected(1_334_628_352, 24, (16, 8, 64), 4096, True),
    "ibm-granite/granite-3.1-2b-instruct": Expected(2_533_531_648, 40, (32, 8, 64), 131072, True, bases=5e6),
    "ibm-granite/granite-4.0-h-tiny": Expected(6_939_037_248, 40, (12, 4, 128), 131072, True, bases=None),
    "karpathy/nanochat-d32": Expected(1_879_048_192, 32, (16, 16, 128), 2048, False),
    "kyutai/helium-1-2b": Expected(2_023_868_416, 28, (16, 8, 128), 4096, False, bases=2e4),
    "llava-hf/llava-1.5-7b-hf": Expected(6_738_939_904, 32, (32, 32, 128), 4096, False),
    "meta-llama/Llama-3.2-1B": Expected(1_235_814_400, 16, (32, 8, 64), 131072, True, bases=5e5),
    "microsoft/Phi-3-mini-4k-instruct": Expected(3_821_079_552, 32, (32, 32, 96), 4096, False, windows=2047),
    "microsoft/biogpt": Expected(346_763_264, 24, (16, 16, 64), 1024, True, bases=None),
    "microsoft/phi-2": Expected(2_779_683_840, 32, (32, 32, 80), 2048, False),
    "mistralai/Mistral-7B-Instruct-v0.3": Expected(7_248_023_552, 32, (32, 8, 128), 32768, False, bases=1e6),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": Expected(  # the head that it stores is no field of config.json
        22_901_314_560, 40, (32, 8, 128), 131072, True, bases=1e9
    ),
    "mistralai/Mistral-7B-v0.1": Expected(7_241_732_096, 32, (32, 8, 128), 32768, False, windows=4096),
    "moonshotai/Moonlight-16B-A3B": Expected(15_960_110_208, 27, (16, 16, 192), 8192, False, bases=5e4),
    "mosaicml/mpt-7b": Expected(6_649_286_656, 32, (32, 32, 128), 2048, True, bases=None),
    "nvidia/Nemotron-Mini-4B-Instruct": Expected(4_190_509_056, 32, (24, 8, 128), 4096, False),
    "openai/gpt-oss-20b": Expected(
        20_914_757_184, 24, (64, 8, 64), 131072, False, windows=[128, None] * 12, bases=150000.0
    ),
    "openai-community/gpt2": Expected(124_439_808, 12, (12, 12, 64), 1024, True, bases=None),
    "stabilityai/stablelm-2-1_6b": Expected(1_644_515_328, 24, (32, 32, 64), 4096, False),
    "swiss-ai/Apertus-8B-Instruct-2509": Expected(8_053_338_240, 32, (32, 8, 128), 65536, False, bases=12e6),
    "tencent/Hunyuan-1.8B-Instruct": Expected(
        1_791_080_448, 32, (16, 4, 128), 262144, True, bases=1e4 * 1000 ** (128 / 126)
    ),
    "tiiuae/falcon-40b": Expected(41_303_293_952, 60, (128, 8, 64), 2048, True),
    "tiiuae/falcon-7b": Expected(6_921_720_704, 32, (71, 1, 64), 2048, True),
}  # fmt: skip

# Fields that do not change the size: of the model and of its first block, by their path.
DETAILS = {
    "ByteDance-Seed/Seed-OSS-36B-Instruct": {"attention.qkv_bias": True, "attention.output_bias": False},
    "CohereForAI/c4ai-command-r-v01": {
        "model.logit_scale": 0.0625, "block.residual": "parallel_one_norm", "attention.rotary.interleaved": True,
        "attention.qk_norm": None, "block.norm.kind": "layer_norm",
    },
    "CohereForAI/c4ai-command-r7b-12-2024": {
        "model.logit_scale": 0.25, "block.residual": "parallel_one_norm", "attention.rotary.interleaved": True,
    },
    "EleutherAI/gpt-j-6b": {
        "attention.rotary.rotary_dim": 64, "attention.rotary.interleaved": True, "block.residual": "parallel_one_norm",
        "model.head_bias": True, "feed_forward.intermediate_size": 16384,
    },
    "EleutherAI/gpt-neo-125m": {"attention.scale": 1.0, "attention.qkv_bias": False, "attention.output_bias": True},
    "EleutherAI/pythia-160m": {
        "attention.rotary.rotary_dim": 16, "attention.qkv_bias": True, "block.residual": "parallel",
        "feed_forward.activation": "gelu",
    },
    "LGAI-EXAONE/EXAONE-4.0-1.2B": {
        "attention.qk_norm.over": "head", "block.norm_placement": "output", "attention.rotary.scaling.factor": 16.0,
    },
    "Qwen/Qwen1.5-MoE-A2.7B": {
        "attention.qkv_bias": True, "feed_forward.experts_per_token": 4, "feed_forward.shared_gate": True,
        "feed_forward.router.normalized": False,
    },
    "Qwen/Qwen2.5-0.5B": {"attention.qkv_bias": True, "attention.output_bias": False},
    "Qwen/Qwen3-0.6B": {"attention.qk_norm.over": "head", "attention.qkv_bias": False},
    "THUDM/GLM-4-9B-0414": {
        "attention.rotary.rotary_dim": 64, "attention.rotary.interleaved": True, "block.norm_placement": "sandwich",
        "attention.qkv_bias": True, "attention.output_bias": False,
    },
    "THUDM/glm-4-9b-chat-hf": {"block.norm_placement": "pre", "block.norm.eps": 1.5625e-7},
    "allenai/OLMo-1B-hf": {"block.norm.kind": "layer_norm", "block.norm.weight": False, "attention.qkv_clip": None},
    "allenai/OLMo-2-0425-1B": {"attention.qk_norm.over": "projection", "block.norm_placement": "output"},
    "allenai/Olmo-3-7B-Instruct": {
        "attention.qk_norm.over": "projection", "block.norm_placement": "output", "attention.rotary.scaling": None,
    },
    "arcee-ai/AFM-4.5B": {
        "feed_forward.activation": "relu_squared", "feed_forward.gated": False,
        "attention.rotary.scaling.attention_factor": 0.1 * math.log(20) + 1,
    },
    "baidu/ERNIE-4.5-0.3B-PT": {"attention.rotary.interleaved": True, "attention.qkv_bias": False},
    "bigscience/bloom-560m": {
        "attention.relative.kind": "alibi", "model.embedding_norm.kind": "layer_norm",
        "feed_forward.intermediate_size": 4096,
    },
    "deepseek-ai/DeepSeek-V2-Lite": {
        "attention.rotary.interleaved": True, "attention.latent.value_dim": 128, "attention.latent.query_rank": None,
        "attention.scale": 192**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2, "feed_forward.intermediate_size": 10944,
        "attention.rotary.scaling.attention_factor": 1.0,
    },
    "facebook/MobileLLM-R1-140M": {
        "attention.qk_norm.after_rotary": True, "attention.chunk": None, "attention.query_temperature": None,
        "attention.rotary.interleaved": True,
    },
    "facebook/cwm": {"attention.rotary.scaling.factor": 16.0, "attention.qkv_bias": False},
    "facebook/opt-125m": {
        "model.position_embedding.rows": 2050, "model.position_embedding.offset": 2, "block.norm_placement": "pre",
        "feed_forward.activation": "relu",
    },
    "google/gemma-2-2b": {
        "attention.softcap": 50.0, "attention.scale": 1 / 16, "model.logit_softcap": 30.0,
        "model.embedding_scale": 48.0, "block.norm.offset": 1.0, "block.norm_placement": "sandwich",
        "feed_forward.activation": "gelu_tanh",
    },
    "google/gemma-2b": {"feed_forward.activation": "gelu_tanh", "model.embedding_scale": math.sqrt(2048)},
    "google/gemma-3-1b-pt": {
        "attention.softcap": None, "model.logit_softcap": None, "attention.qk_norm.norm.offset": 1.0,
    },
    "ibm-granite/granite-3.1-2b-instruct": {
        "model.embedding_scale": 12.0, "attention.scale": 1 / 64, "block.residual_scale": 0.22,
        "model.logit_scale": 1 / 8,
    },
    "ibm-granite/granite-4.0-h-tiny": {
        "attention.scale": 1 / 128, "block.residual_scale": 0.22, "model.logit_scale": 1 / 6,
        "block.recurrent.num_heads": 48, "block.recurrent.state_size": 128, "feed_forward.experts_per_token": 6,
        "feed_forward.shared.intermediate_size": 1024,
    },
    "karpathy/nanochat-d32": {
        "attention.rotary.backward": True, "attention.qk_norm.after_rotary": True, "model.logit_softcap": 15.0,
        "model.embedding_norm.weight": False, "feed_forward.activation": "relu_squared",
    },
    "kyutai/helium-1-2b": {"attention.rotary.interleaved": True, "block.norm.eps": 1e-8},
    "meta-llama/Llama-3.2-1B": {"attention.rotary.scaling.factor": 32.0},
    "microsoft/biogpt": {"model.embedding_scale": 32.0, "block.norm.eps": 1e-5},
    "microsoft/phi-2": {
        "attention.rotary.rotary_dim": 32, "model.head_bias": True, "block.residual": "parallel_one_norm",
    },
    "mosaicml/mpt-7b": {"attention.relative.kind": "alibi", "block.norm.bias": False, "attention.qkv_clip": None},
    "nvidia/Nemotron-Mini-4B-Instruct": {
        "attention.rotary.rotary_dim": 64, "attention.rotary.interleaved": False, "block.norm.kind": "layer_norm",
        "block.norm.offset": 1.0, "feed_forward.activation": "relu_squared", "feed_forward.gated": False,
    },
    "openai/gpt-oss-20b": {
        "attention.sinks": True, "attention.output_bias": True, "attention.rotary.scaling.truncate": False,
        "feed_forward.expert.limit": 7.0, "feed_forward.expert.beta": 1.702, "feed_forward.expert.up_offset": 1.0,
        "feed_forward.router.bias": True,
    },
    "openai-community/gpt2": {"model.position_embedding.rows": 1024, "feed_forward.activation": "gelu_tanh"},
    "stabilityai/stablelm-2-1_6b": {
        "attention.rotary.rotary_dim": 16, "attention.qkv_bias": True, "attention.output_bias": False,
        "block.residual": "serial",
    },
    "swiss-ai/Apertus-8B-Instruct-2509": {
        "feed_forward.activation": "xielu", "feed_forward.gated": False, "attention.qk_norm.over": "head",
        "attention.rotary.scaling.factor": 8.0,
    },
    "tencent/Hunyuan-1.8B-Instruct": {"attention.qk_norm.after_rotary": True, "attention.rotary.scaling": None},
    "tiiuae/falcon-40b": {"block.residual": "parallel", "attention.qkv_bias": False},
    "tiiuae/falcon-7b": {"block.residual": "parallel_one_norm", "attention.qkv_bias": False},
}  # fmt: skip


def stored(name):
    return json.loads((FOLDER / f"{name.replace('/', '--')}.json").read_text())


def test_every_stored_config_is_expected():
    assert {path.stem.replace("--", "/") for path in FOLDER.glob("*.json")} == EXPECTED.keys() >= DETAILS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_config_is_read_as_its_model(name):
    family, config = read_model_config(stored(name))
    attentions = config.attentions
    windows = [attention.window for attention in attentions]
    bases = [attention.rotary and attention.rotary.base for attention in attentions]
    actual = Expected(
        parameters=sum(map(math.prod, parameter_shapes(config).values())),
        layers=len(config.blocks),
        heads=(attentions[0].num_heads, attentions[0].num_kv_heads, attentions[0].head_dim),
        context_length=config.context_length,
        tied=config.tied_head,
        windows=windows if len(set(windows)) > 1 else windows[0],
        bases=bases if len(set(bases)) > 1 else bases[0],
    )
    assert actual == EXPECTED[name]
    block = config.blocks[0]
    parts = SimpleNamespace(model=config, block=block, attention=attentions[0], feed_forward=block.feed_forward)
    details = DETAILS.get(name, {})
    assert {path: attrgetter(path)(parts) for path in details} == details
    assert all(family.places(parameter_shapes(config)).values())


def rewritten(config):
    """Return the config.json that transformers 5 writes after reading this one."""
    return json.loads(transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config).to_json_string())


@pytest.mark.parametrize("name", EXPECTED)
def test_what_transformers_5_makes_of_it_means_the_same(name):
    assert read_model_config(rewritten(stored(name)))[1] == read_model_config(stored(name))[1]


FAST = {"bert", "gemma2", "gpt2", "llama", "qwen3_next", "t5", "whisper"}


@pytest.mark.parametrize("family", slow_unless(FAST, FAMILIES))
def test_an_absent_or_null_field_means_what_it_does_in_hf(family):
    """A field that is left out or null is refused, or read as transformers does."""
    compared = set()
    for options in FAMILIES[family].models.values():
        whole = rewritten({"model_type": family} | FAMILIES[family].sizes | options)
        if "max_position_embeddings" in whole:  # longer than default windows, which otherwise would be none
            whole["max_position_embeddings"] = 1 << 17
        for name in whole.keys() - {"model_type"}:
            without = {key: value for key, value in whole.items() if key != name}
            for changed in (without, without | {name: None}):
                try:
                    ours, theirs = read_model_config(changed)[1], rewritten(changed)
                except (ConfigError, StrictDataclassError):  # we refuse it, or transformers does
                    continue
                assert ours == read_model_config(theirs)[1], (name, changed.get(name, "absent"))
                compared.add(name)
    assert len(compared) >= 8, compared

"""Write the checkpoints of tests/families/quantized_checkpoints with the libraries of their formats.

    pip install torchao==0.18.0 nvidia-modelopt==0.47.0 omegaconf
    python tools/checkpoints/quantized_fixtures.py tests/families/quantized_checkpoints torchao modelopt

Other libraries want other versions of torch and transformers, so each is installed into an environment without
edgeformer: bitsandbytes==0.50.2 with transformers==5.24.0, llmcompressor==0.14.0.1, and gptqmodel==7.7.0, which writes
GPTQ and AWQ (with GPTQMODEL_CPU_WORKERS=2 on few cores), autoawq==0.2.9 with transformers==4.51.3 and datasets==3.6.0.
Arguments after the folder are beginnings of names.

Each is a tiny model with random weights: config.json, model.safetensors, and dequantized.json, the SHA-256 of every
quantized matrix as its library dequantizes it, in float32 without negative zeros. The libraries are no dependency of
the tests; torch and transformers are those of constraints.txt.
"""

import copy
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

SIZES = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 16, "initializer_range": 0.2,
    "tie_word_embeddings": True,
}  # fmt: skip
"""More than 128 outputs: two tiles of scales."""
WIDE = 96
"""Hidden size with which NVFP4 has two tiles of scales in both directions."""
LARGEST = 50_000
"""Bytes that a checkpoint in the repository may have."""


def make_plain(folder: Path, **sizes: int) -> None:
    """Write the model that is quantized."""
    torch.manual_seed(4)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES | sizes)).save_pretrained(folder)


def write_torchao(plain: Path, wide: Path, folder: Path) -> None:
    """Write checkpoints of torchao, as transformers saves them."""
    import torchao.quantization as q
    from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig, NVFP4WeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    int4, group = torch.int4, PerGroup(32)
    kinds = {
        "int8-weight-only": q.Int8WeightOnlyConfig(),
        "int8-groups": q.Int8WeightOnlyConfig(granularity=group),
        "int8-dynamic": q.Int8DynamicActivationInt8WeightConfig(),
        "int4-groups": q.IntxWeightOnlyConfig(weight_dtype=int4, granularity=group),
        "int4-asymmetric": q.IntxWeightOnlyConfig(
            weight_dtype=int4, granularity=group, mapping_type=q.MappingType.ASYMMETRIC
        ),
        "int4-dynamic": q.Int8DynamicActivationIntxWeightConfig(weight_dtype=int4, weight_granularity=group),
        "float8": q.Float8WeightOnlyConfig(),
        "nvfp4": NVFP4WeightOnlyConfig(),
        "mxfp8": MXDynamicActivationMXWeightConfig(),
        "mxfp4": MXDynamicActivationMXWeightConfig(
            weight_dtype=torch.float4_e2m1fn_x2, activation_dtype=torch.float4_e2m1fn_x2
        ),
    }
    for name, kind in kinds.items():
        if not wanted(f"torchao-{name}"):
            continue
        model = transformers.AutoModelForCausalLM.from_pretrained(
            wide if name == "nvfp4" else plain,
            dtype=torch.bfloat16 if name.startswith("mx") else torch.float32,  # the kernels for mx take bfloat16
            quantization_config=transformers.TorchAoConfig(kind),
        )
        model.save_pretrained(folder / f"torchao-{name}")
        weights = {key: weight for key, weight in model.state_dict().items() if type(weight) is not torch.Tensor}
        finish(folder / f"torchao-{name}", {key: _dequantized(weight) for key, weight in weights.items()})


def _dequantized(weight: torch.Tensor) -> torch.Tensor:
    """Return float32 of a tensor of torchao; classes of integers take no type, and have that of the model."""
    return weight.dequantize() if weight.dtype == torch.float32 else weight.dequantize(torch.float32)


def write_modelopt(plain: Path, folder: Path) -> None:
    """Write checkpoints of modelopt, calibrated by random tokens."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint, quant_utils

    kinds = {
        "fp8": mtq.FP8_DEFAULT_CFG,
        "fp8-channels": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
        "nvfp4": mtq.NVFP4_DEFAULT_CFG,
        "nvfp4-weight-only": mtq.W4A16_NVFP4_CFG,
        "mxfp4": mtq.MXFP4_DEFAULT_CFG,
        "mxfp8": mtq.MXFP8_DEFAULT_CFG,
        "awq": _in_blocks_of_32(mtq.INT4_AWQ_CFG),
        "mixed": _mixed(mtq.NVFP4_DEFAULT_CFG, mtq.FP8_DEFAULT_CFG),
    }
    pack, rounded = quant_utils.pack_int4_in_uint8, dict[bytes, torch.Tensor]()

    def recording(weight: torch.Tensor, scales: torch.Tensor, size: int) -> torch.Tensor:
        """Pack integers, and keep the weights that they mean; the library has no function that unpacks them."""
        packed: torch.Tensor = pack(weight, scales, size)
        wide = scales.float().repeat_interleave(size, 1)
        steps = (weight / scales.repeat_interleave(size, 1)).round().clamp(-8, 7)
        rounded[packed.numpy().tobytes()] = steps.float() * wide
        return packed

    quant_utils.pack_int4_in_uint8 = recording
    for name, kind in kinds.items():
        if not wanted(f"modelopt-{name}"):
            continue
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
        shapes = {key: weight.shape for key, weight in model.state_dict().items()}
        model = mtq.quantize(model, kind, lambda model: model(torch.randint(0, SIZES["vocab_size"], (2, 16))))
        with torch.inference_mode():
            export_hf_checkpoint(model, export_dir=folder / f"modelopt-{name}")
        stored, meant = load_file(folder / f"modelopt-{name}" / "model.safetensors"), {}
        for key in (key for key in shapes if f"{key}_scale" in stored):
            weight = _meant(stored, key, shapes[key], rounded)
            factors = stored.get(key.replace(".weight", ".pre_quant_scale"))
            meant[key] = weight if factors is None else weight * factors.float()
        finish(folder / f"modelopt-{name}", meant)


def _meant(
    stored: dict[str, torch.Tensor], key: str, shape: torch.Size, rounded: dict[bytes, torch.Tensor]
) -> torch.Tensor:
    """Return float32 of a matrix of modelopt. rounded: weights in AWQ by their bytes."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    numbers, scale = stored[key], stored[f"{key}_scale"]
    if numbers.dtype == torch.uint8 and numbers.numpy().tobytes() in rounded:
        return rounded[numbers.numpy().tobytes()]
    if numbers.dtype == torch.float8_e4m3fn and scale.dim() == 1:  # FP8QTensor broadcasts a scale over inputs
        return numbers.float() * scale[:, None]
    if numbers.dtype == torch.float8_e4m3fn and scale.dtype != torch.uint8:
        return FP8QTensor(shape, torch.float32, numbers).dequantize(dtype=torch.float32, scale=scale)
    options = {"scale": scale, "block_sizes": {-1: 16 if f"{key}_scale_2" in stored else 32}}
    if f"{key}_scale_2" in stored:
        options["double_scale"] = stored[f"{key}_scale_2"]
        return NVFP4QTensor(shape, torch.float32, numbers).dequantize(dtype=torch.float32, **options)
    of_class = MXFP8QTensor if numbers.dtype == torch.float8_e4m3fn else MXFP4QTensor
    return of_class(shape, torch.float32, numbers).dequantize(dtype=torch.float32, **options)


def _in_blocks_of_32(config: Any) -> Any:
    """Return a config whose integers have scales for 32 inputs; by default it is 128, more than the model has."""
    changed = copy.deepcopy(config)
    for entry in changed["quant_cfg"]:
        if "block_sizes" in entry.get("cfg", {}):
            entry["cfg"]["block_sizes"][-1] = 32
    return changed


def _mixed(config: Any, attention: Any) -> Any:
    """Return a config whose attention is quantized as another config says."""
    changed = copy.deepcopy(config)
    others = [
        {"quantizer_name": f"*self_attn{entry['quantizer_name']}", "cfg": entry["cfg"]}
        for entry in attention["quant_cfg"] if "cfg" in entry
    ]  # fmt: skip
    last = max(place for place, entry in enumerate(changed["quant_cfg"]) if "cfg" in entry)
    changed["quant_cfg"][last + 1 : last + 1] = others
    return changed


def write_bitsandbytes(plain: Path, even: Path, folder: Path) -> None:
    """Write checkpoints of bitsandbytes. even: a model whose blocks of 64 weights end where rows do.

    Version 0.50.2 dequantizes blocks across rows otherwise on CPUs than it wrote them: errors are twice as large.
    """
    from bitsandbytes import functional

    kinds = {
        "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "nf4-double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
        "int8": {"load_in_8bit": True},
    }
    for name, kind in kinds.items():
        if not wanted(f"bitsandbytes-{name}"):
            continue
        options = transformers.BitsAndBytesConfig(**kind)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            plain if "int8" in name else even, dtype=torch.float32, device_map="cpu", quantization_config=options
        )
        model.save_pretrained(folder / f"bitsandbytes-{name}")
        meant = {}
        for key, weight in model.named_parameters():
            if getattr(weight, "SCB", None) is not None:
                library = functional.int8_vectorwise_dequant(weight.data, weight.SCB)
                meant[key] = weight.data.float() * (weight.SCB / 127)[:, None]
                torch.testing.assert_close(meant[key], library, rtol=3e-7, atol=0)  # it multiplies in another order
            elif getattr(weight, "quant_state", None) is not None:
                meant[key] = functional.dequantize_4bit(weight.data, weight.quant_state)
        finish(folder / f"bitsandbytes-{name}", meant)


def write_llmcompressor(plain: Path, folder: Path) -> None:
    """Write checkpoints of llm-compressor, which transformers reads with the package compressed-tensors."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    groups = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    integers = {"num_bits": 8, "type": "int", "symmetric": True}
    floats = {"num_bits": 8, "type": "float", "symmetric": True}
    tokens = {"strategy": "token", "dynamic": True}
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
        "w4a16": (groups, None),
        "w4a16-asymmetric": (groups | {"symmetric": False}, None),
        "w4a16-gptq": (groups | {"actorder": "weight"}, None),
        "w8a8": (integers | {"strategy": "channel"}, integers | tokens),
        "w8a8-gptq": (integers | {"strategy": "channel"}, integers | tokens),
        "w8a8-tensor": (integers | {"strategy": "tensor"}, integers | {"strategy": "tensor"}),
        "fp8": (floats | {"strategy": "channel"}, floats | tokens),
        "fp8-tensor": (floats | {"strategy": "tensor"}, floats | {"strategy": "tensor"}),
        "fp8-blocks": (
            floats | {"strategy": "block", "block_structure": [16, 32]},
            floats | {"strategy": "group", "group_size": 32, "dynamic": True},
        ),
    }
    for name, (weights, inputs) in kinds.items():
        if not wanted(f"llmcompressor-{name}"):
            continue
        scheme = QuantizationScheme(
            targets=["Linear"], weights=QuantizationArgs(**weights),
            input_activations=None if inputs is None else QuantizationArgs(**inputs),
        )  # fmt: skip
        torch.manual_seed(5)
        texts = Dataset.from_dict({"input_ids": torch.randint(2, SIZES["vocab_size"], (16, 32)).tolist()})
        model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
        calibrated = "gptq" in name
        modifier = (GPTQModifier if calibrated else QuantizationModifier)(
            config_groups={"group_0": scheme}, ignore=["lm_head"]
        )
        options = {"dataset": texts, "num_calibration_samples": 16, "max_seq_length": 32}
        oneshot(model=model, recipe=modifier, **(options if calibrated or "tensor" in name else {}))
        place = folder / f"llmcompressor-{name}"
        model.save_pretrained(place, save_compressed=True)
        options = transformers.CompressedTensorsConfig(dequantize=True)
        read = transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, quantization_config=options
        )
        meant = {key: weight.float() for key, weight in read.state_dict().items() if key.endswith("proj.weight")}
        finish(place, meant)


def write_gptqmodel(plain: Path, square: Path, folder: Path) -> None:
    """Write checkpoints in GPTQ and AWQ, calibrated by random tokens.

    square: a model whose matrices have outputs in multiples of 64, which the library's AWQ asks for.
    """
    from gptqmodel import GPTQModel, QuantizeConfig
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    gptq = {"bits": 4, "group_size": 32, "offload_to_disk": False}
    awq = gptq | {"method": "awq", "format": "gemm"}
    kinds: dict[str, tuple[Path, dict[str, Any]]] = {
        "gptq": (plain, gptq | {"sym": True, "desc_act": False}),
        "gptq-asymmetric": (plain, gptq | {"sym": False, "desc_act": False}),
        "gptq-act-order": (plain, gptq | {"sym": False, "desc_act": True, "act_group_aware": False}),
        "gptq-v2-int8": (plain, gptq | {"bits": 8, "sym": False, "desc_act": False, "format": "gptq_v2"}),
        "awq": (square, awq | {"sym": False}),
        "awq-symmetric": (square, awq | {"sym": True}),
        "awq-groups-of-64": (square, awq | {"sym": False, "group_size": 64}),
    }
    for name, (model, options) in kinds.items():
        if not wanted(f"gptqmodel-{name}"):
            continue
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        _write_tokenizer(model, vocabulary)
        generator = torch.Generator().manual_seed(5)
        texts = [torch.randint(2, vocabulary, (32,), generator=generator).tolist() for _ in range(16)]
        loaded = GPTQModel.load(str(model), QuantizeConfig(**options))
        loaded.quantize([{"input_ids": text, "attention_mask": [1] * len(text)} for text in texts], batch_size=1)
        loaded.save(str(folder / f"gptqmodel-{name}"))
        stored, meant = load_file(folder / f"gptqmodel-{name}" / "model.safetensors"), {}
        for module in (key.removesuffix(".qweight") for key in stored if key.endswith(".qweight")):
            words, zeros, scales = (stored[f"{module}.{last}"] for last in ("qweight", "qzeros", "scales"))
            if "awq" in name:
                weight = dequantize_gemm(words, zeros, scales.float(), options["bits"], options["group_size"])
            else:
                weight = _dequantized_gptq(stored, module, options)
            meant[f"{module}.weight"] = weight.T.contiguous()
        finish(folder / f"gptqmodel-{name}", meant)


def _dequantized_gptq(stored: dict[str, torch.Tensor], module: str, options: dict[str, Any]) -> torch.Tensor:
    """Return float32 [inputs, outputs] of a matrix in GPTQ, by the layer of the library that runs on CPUs."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import FORMAT
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    tensors = {last: stored[f"{module}.{last}"] for last in ("qweight", "qzeros", "scales", "g_idx")}
    inputs, outputs = len(tensors["g_idx"]), tensors["scales"].shape[1]
    layer = TorchLinear(
        bits=options["bits"], group_size=options["group_size"], sym=options.get("sym", True),
        desc_act=options["desc_act"], in_features=inputs, out_features=outputs, bias=False, register_buffers=True,
    )  # fmt: skip
    layer.load_state_dict(tensors, strict=False)
    if options.get("format", FORMAT.GPTQ) == FORMAT.GPTQ:  # zero points are stored one lower
        convert_gptq_v1_to_v2_format_module(layer, bits=options["bits"], pack_dtype=torch.int32)
    layer.post_init()
    layer.scales = layer.scales.float()
    return layer.dequantize_weight()


def write_autoawq(square: Path, folder: Path) -> None:
    """Write checkpoints of AutoAWQ, calibrated by random tokens."""
    from awq import AutoAWQForCausalLM
    from awq.utils.packing_utils import dequantize_gemm

    kinds = {
        "groups-of-32": {"q_group_size": 32, "zero_point": True},
        "groups-of-64": {"q_group_size": 64, "zero_point": True},
        "groups-of-16": {"q_group_size": 16, "zero_point": True},
    }
    vocabulary = json.loads((square / "config.json").read_text())["vocab_size"]
    _write_tokenizer(square, vocabulary)
    for name, options in kinds.items():
        if not wanted(f"autoawq-{name}"):
            continue
        generator = torch.Generator().manual_seed(5)
        texts = [torch.randint(2, vocabulary, (32,), generator=generator).tolist() for _ in range(16)]
        loaded = AutoAWQForCausalLM.from_pretrained(str(square), device_map="cpu", safetensors=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(square)
        kind = options | {"w_bit": 4, "version": "GEMM"}
        loaded.quantize(tokenizer, quant_config=kind, calib_data=texts, max_calib_seq_len=32)
        loaded.save_quantized(str(folder / f"autoawq-{name}"))
        stored, meant = load_file(folder / f"autoawq-{name}" / "model.safetensors"), {}
        for module in (key.removesuffix(".qweight") for key in stored if key.endswith(".qweight")):
            words, zeros, scales = (stored[f"{module}.{last}"] for last in ("qweight", "qzeros", "scales"))
            size = len(words) // len(scales)
            meant[f"{module}.weight"] = dequantize_gemm(words, zeros, scales.float(), 4, size).T.contiguous()
        finish(folder / f"autoawq-{name}", meant)


def _write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer, which the library asks for."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"word{number}": number for number in range(size)}, unk_token="word0"))
    tokens = {"unk_token": "word0", "pad_token": "word0", "eos_token": "word1"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(folder)


def wanted(name: str) -> bool:
    """Return whether a checkpoint is asked for: all are where no names are given."""
    return len(sys.argv) == 2 or any(name.startswith(given) or given.startswith(name) for given in sys.argv[2:])


def finish(folder: Path, meant: dict[str, torch.Tensor]) -> None:
    """Add digests of the matrices, and leave no other files."""
    digests = {key: hashlib.sha256((weight + 0.0).numpy().tobytes()).hexdigest() for key, weight in meant.items()}
    assert digests, f"nothing of {folder} is quantized"
    (folder / "dequantized.json").write_text(json.dumps(digests, indent=1) + "\n")
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors", "dequantized.json"):
            path.unlink()
    size = (folder / "model.safetensors").stat().st_size
    assert size <= LARGEST, f"{folder} has {size:,} bytes"
    print(f"{folder.name}: {size:,} bytes, {len(digests)} matrices")


if __name__ == "__main__":
    output = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        plain, wide, even, square = (Path(name) / each for each in ("plain", "wide", "even", "square"))
        make_plain(plain)
        make_plain(wide, hidden_size=WIDE, intermediate_size=144, vocab_size=16)
        make_plain(even, hidden_size=64, intermediate_size=128, vocab_size=16, num_attention_heads=4)
        four = {"num_attention_heads": 4, "num_key_value_heads": 4}
        make_plain(square, hidden_size=64, intermediate_size=128, vocab_size=16, **four)
        for library, write in {
            "torchao": lambda: write_torchao(plain, wide, output),
            "modelopt": lambda: write_modelopt(plain, output),
            "bitsandbytes": lambda: write_bitsandbytes(plain, even, output),
            "llmcompressor": lambda: write_llmcompressor(plain, output),
            "gptqmodel": lambda: write_gptqmodel(plain, square, output),
            "autoawq": lambda: write_autoawq(square, output),
        }.items():
            if wanted(library):
                write()

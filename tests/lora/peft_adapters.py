"""LoRA adapters of random models, made and computed by PEFT itself."""

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from edgeformer.transformers_backend.float64 import computing_in_float64

TRAINED = ("lora_", "modules_to_save", "bias")
"""Parts of the names of parameters that an adapter holds."""


def open_model(folder: Path, auto: str, more_tokens: int = 0) -> Any:
    """Return transformers' model of a folder, in float64. more_tokens: random rows that its vocabulary gets."""
    with computing_in_float64():  # so that its tables are computed in float64, too
        model = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float64).eval()
    if more_tokens:
        model.resize_token_embeddings(model.config.vocab_size + more_tokens, mean_resizing=False)
    return model


def make_adapter(
    base: Path, destination: Path, auto: str = "AutoModelForCausalLM", seed: int = 0, more_tokens: int = 0,
    **options: Any,
) -> Path:  # fmt: skip
    """Save a random adapter of a model's folder, in float64; options: fields of PEFT's LoraConfig."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, **options})
        model = peft.get_peft_model(open_model(base, auto, more_tokens), config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and any(part in name for part in TRAINED):
                    noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                    parameter.add_(0.3 * noise / (parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1))
        model.save_pretrained(destination)
    return destination


def adapted_outputs(base: Path, adapter: Path, auto: str, more_tokens: int = 0, **inputs: torch.Tensor) -> Any:
    """Return what PEFT computes in float64 with an adapter that is not merged."""
    import peft

    with warnings.catch_warnings(), torch.no_grad(), computing_in_float64():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(
            open_model(base, auto, more_tokens), adapter, autocast_adapter_dtype=False
        ).eval()
        return model.base_model.model(**inputs, return_dict=True)


def summed_logits(base: Path, adapters: dict[str, Path], weights: dict[str, float], ids: list[int]) -> torch.Tensor:
    """Return the logits [n, V] of PEFT's own weighted sum of adapters (`add_weighted_adapter`), in float64."""
    import peft

    with warnings.catch_warnings(), torch.no_grad(), computing_in_float64():
        warnings.simplefilter("ignore")
        names = list(weights)
        keywords = {"autocast_adapter_dtype": False}
        model = peft.PeftModel.from_pretrained(
            open_model(base, "AutoModelForCausalLM"), adapters[names[0]], adapter_name=names[0], **keywords
        )
        for name in names[1:]:
            model.load_adapter(adapters[name], adapter_name=name, **keywords)
        model.add_weighted_adapter(names, [weights[name] for name in names], "sum", combination_type="cat")
        model.set_adapter("sum")
        return model.double().eval().base_model.model(input_ids=torch.tensor([ids])).logits[0]

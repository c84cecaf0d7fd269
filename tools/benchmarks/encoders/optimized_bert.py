"""A BERT as onnxruntime's own tools make it fast: `onnxruntime.transformers.optimizer`, and dynamic quantization.

The optimizer recognises the blocks of the graph that PyTorch's older exporter writes, and puts one op in place of each:
attention, the embedding with its norm, sums with their norms, GELU with its bias. `quantize_dynamic` then stores int8
weights, with a scale for each output, and lets a node round each product's inputs by one scale.
https://onnxruntime.ai/docs/performance/transformers-optimization.html
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import click

OPSET = 17
"""The operator set that is exported; the optimizer's patterns are those of old ones."""

INPUTS, OUTPUT = ["input_ids", "attention_mask"], "last_hidden_state"


def write_optimized_bert(checkpoint: Path, folder: Path, *, quantized: bool) -> Path:
    """Export a BERT in transformers' format, optimize it, and quantize it if wanted; return the file of the graph.

    folder: gets the graph and those that lead to it. Raises ClickException if the optimizer leaves out a layer, since
    the comparison would then be with a slower graph than onnxruntime can make.
    """
    from onnxruntime.transformers import optimizer

    exported, optimized = folder / "exported.onnx", folder / "optimized.onnx"
    config = _export(checkpoint, exported)
    model = optimizer.optimize_model(
        str(exported), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    check_fused(model.get_fused_operator_statistics(), config.num_hidden_layers)
    model.save_model_to_file(str(optimized))
    return _quantize(optimized, folder / "quantized.onnx") if quantized else optimized


def check_fused(fused: dict[str, int], layers: int) -> None:
    """Raise ClickException unless every layer has its attention, its two norms and its activation in one op each."""
    wanted = {
        "EmbedLayerNormalization": 1,
        "Attention": layers,
        "SkipLayerNormalization": 2 * layers,
        "BiasGelu": layers,
    }
    found = {name: fused.get(name, 0) for name in wanted}
    if found != wanted:
        raise click.ClickException(
            f"onnxruntime's optimizer made {found} of a BERT of {layers} layers, and {wanted} was expected. The "
            "comparison would be with a slower graph than onnxruntime can make; no speed is reported."
        )


def _export(checkpoint: Path, file: Path) -> Any:
    """Write the graph of a BERT and return its config. Attention is eager: the optimizer knows its products."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(
        checkpoint, add_pooling_layer=False, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids, attention_mask=attention_mask).last_hidden_state

    example = torch.ones(2, 16, dtype=torch.long)
    sizes = {0: "batch_size", 1: "sequence_length"}
    with warnings.catch_warnings():
        # The exporter is old, and warns of constants that it folds; the states are compared with those of transformers.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            States(),
            (example, example),
            str(file),
            input_names=INPUTS,
            output_names=[OUTPUT],
            dynamic_axes=dict.fromkeys([*INPUTS, OUTPUT], sizes),
            opset_version=OPSET,
            dynamo=False,
        )
    return model.config


def _quantize(optimized: Path, file: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Shapes cannot be inferred through onnxruntime's own ops, of which the optimized graph consists.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    logging.disable(logging.WARNING)  # advice to infer shapes first
    try:
        quantize_dynamic(optimized, file, weight_type=QuantType.QInt8, per_channel=True, extra_options=options)
    finally:
        logging.disable(logging.NOTSET)
    return file

"""Encoders and encoder-decoders that blocks of `ModelConfig` cannot express, or that transformers lacks, and why.

No other backend exports them either: `--backend transformers` takes decoders.
"""

REFUSED = {
    "big_bird": "its attention draws random blocks for every layer and head, and is full for short texts",
    "bigbird_pegasus": "its encoder has the block-sparse attention of BigBird",
    "canine": "it hashes characters, and shortens and lengthens the text by convolutions",
    "colmodernvbert": (
        "it has a matrix behind a ModernVBERT that makes a vector of every token of a page; 'modernvbert', which it "
        "holds as vlm_config, is exported by itself"
    ),
    "convbert": "convolutions whose kernels are computed from the text take the place of some heads",
    "fnet": "it has Fourier transforms in place of attention",
    "funnel": "it shortens the text between blocks by pooling",
    "ibert": "it computes with integers that its checkpoints are quantized to",
    "layoutlm": "it reads the boxes of words on a page beside the text",
    "longt5": "its encoder attends to means of blocks of the text (transient-global attention)",
    "luke": "it reads entities beside the text",
    "mra": "its attention approximates scores in blocks of several resolutions",
    "new": (
        "its module is code of a repository (Alibaba-NLP/new-impl), and transformers has none to compare an export "
        "with; the same checkpoint with model_type 'gte' is exported"
    ),
    "nystromformer": "its attention approximates scores by landmarks and a convolution",
    "pixtral": "it is a tower alone, which reads pictures of any size; models with it are `llava` and `mistral3`",
    "prophetnet": "its decoder predicts several tokens at a time by several streams",
    "reformer": "its attention sorts tokens by hashes, and its residual streams are reversible",
    "squeezebert": "its projections are grouped convolutions",
    "switch_transformers": "its experts have a capacity, beyond which tokens are dropped",
    "t5gemma2": "its decoder attends to itself and to the encoder in one softmax, and its encoder reads images",
    "xlnet": "it has two streams of attention and a memory of earlier texts",
    "yoso": "its attention samples tokens by hashes",
}
"""Reasons of refusals by model_type."""

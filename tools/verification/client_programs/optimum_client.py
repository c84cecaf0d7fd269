"""Generate token ids with Optimum's ORTModelForCausalLM or ORTModelForSeq2SeqLM.

It requires an old version of transformers, so it runs in an environment of its own.

    python optimum_client.py BUNDLE "5 6 7" --ids --new-tokens 48
"""

import argparse

import torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM
from transformers import AutoConfig


def main() -> None:
    """Print the generated ids."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("prompt")
    parser.add_argument("--ids", action="store_true", required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    args = parser.parse_args()
    is_seq2seq = AutoConfig.from_pretrained(args.bundle).is_encoder_decoder
    if is_seq2seq:  # it finds encoder and decoder by their file names
        model = ORTModelForSeq2SeqLM.from_pretrained(args.bundle)
    else:
        model = ORTModelForCausalLM.from_pretrained(args.bundle, subfolder="onnx", file_name="model.onnx")
    prompt = torch.tensor([[int(word) for word in args.prompt.split()]])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "num_beams": 1}
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0]
    print(*tokens[1 if is_seq2seq else prompt.shape[1] :].tolist())


if __name__ == "__main__":
    main()

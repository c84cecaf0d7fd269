"""Token ids from transformers in PyTorch: the checkpoint's own answer, in float32.

python torch_reference.py CHECKPOINT "5 6 7" --ids --new-tokens 48
"""

import argparse

import torch
import transformers


def main() -> None:
    """Print the ids."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("prompt")
    parser.add_argument("--ids", action="store_true", required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    args = parser.parse_args()
    pair = transformers.AutoConfig.from_pretrained(args.checkpoint).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    prompt = torch.tensor([[int(word) for word in args.prompt.split()]])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "num_beams": 1}
    with torch.no_grad():
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0]
    # What a decoder continues comes back with it, and what follows from a source begins with a token for that.
    print(*tokens[1 if pair else prompt.shape[1] :].tolist())


if __name__ == "__main__":
    main()

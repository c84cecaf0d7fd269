"""Generate token ids with transformers in PyTorch, from the checkpoint, in float32.

python torch_reference.py CHECKPOINT "5 6 7" --ids --new-tokens 48
"""

import argparse

import torch
import transformers


def main() -> None:
    """Print the generated ids."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("prompt")
    parser.add_argument("--ids", action="store_true", required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    args = parser.parse_args()
    is_seq2seq = transformers.AutoConfig.from_pretrained(args.checkpoint).is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if is_seq2seq else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    prompt = torch.tensor([[int(word) for word in args.prompt.split()]])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "num_beams": 1}
    with torch.no_grad():
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0]
    # A decoder returns the prompt too; an encoder-decoder returns its start token first.
    print(*tokens[1 if is_seq2seq else prompt.shape[1] :].tolist())


if __name__ == "__main__":
    main()

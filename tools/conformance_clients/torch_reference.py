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
    model = transformers.AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    prompt = torch.tensor([[int(word) for word in args.prompt.split()]])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    with torch.no_grad():
        print(*model.generate(prompt, **options)[0, prompt.shape[1] :].tolist())


if __name__ == "__main__":
    main()

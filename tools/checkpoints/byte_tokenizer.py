"""Write a tokenizer whose tokens are bytes into a checkpoint's folder.

    python tools/checkpoints/byte_tokenizer.py /tmp/smollm2-135m

A letter is a token, whatever reads the file, so runtimes with tokenizers of their own read prompts of one length. The
rest of the vocabulary are words, which are written and never read.
"""

from pathlib import Path

import click
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgeformer.documents.json_document import read_object


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of bytes, with further tokens up to `vocab_size`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"word{number}" for number in range(vocab_size - len(letters))]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(letters + words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def main(folder: Path) -> None:
    """Write tokenizer.json into FOLDER."""
    vocab_size = read_object(folder / "config.json")["vocab_size"]
    byte_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    click.echo(f"{folder / 'tokenizer.json'}: {vocab_size} tokens, of which the first 256 are bytes")


if __name__ == "__main__":
    main()

"""Tiny models and their training, for `python tools/presets/train_preset.py`.

    corpora/           generators of texts: arithmetic, lists, dates, paragraphs, stories, dialogues, translations
    differentiable.py  differentiable forms of the custom ops, so that edgeformer's own modules can be trained
    training.py        the training loop, for any recipe's loss
    tiny_llama.py …    one recipe per preset: its config, data, loss and score
    drafts/            the layer that drafts tokens of tiny-llama, which is trained behind it
    folder.py          the preset as a Hugging Face folder with a model card

No corpus is downloaded: every text is generated from a seed.
"""

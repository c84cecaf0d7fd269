"""Tiny models and the data that they learn from: the parts of `python tools/presets/train_preset.py`.

    problem.py         a problem with one right answer, and which problems are never trained on
    numbers.py …       generators: arithmetic, lists, dates, paragraphs, stories, dialogues, bilingual sentences
    differentiable.py  the custom ops in forms that autograd knows, so that our own modules can be trained
    training.py        the loop, for whatever a recipe calls a loss
    tiny_llama.py …    one recipe a preset: its config, its data, its loss, its score
    folder.py          the preset as a Hugging Face folder with a model card

No corpus is read: every text is made here, from a seed.
"""

"""The examples on the card of an encoder, by what its head gives, for a shell, Python and transformers.js."""

from typing import NamedTuple

from edgeformer.config.heads import Gives


class Example(NamedTuple):
    """One way to try a model; `{name}` is its folder in a shell, `{mask}` the mask of its tokenizer.

    Attributes:
        command: of a shell.
        python: a line for a `model` that is loaded.
        task: of a pipeline in transformers.js.
        call: the arguments of that pipeline, in JavaScript.
    """

    command: str
    python: str
    task: str
    call: str


EMBEDDING = Example(
    command='edgeformer embed {name} "A cat sleeps." "A kitten naps." "Stocks fell."',
    python='print(model.embed(["A cat sleeps.", "A kitten naps."]).shape)',
    task="feature-extraction",
    call='["A cat sleeps.", "A kitten naps."]',
)

SPARSE = Example(
    command='edgeformer embed {name} --form sparse "A cat sleeps."',
    python='print(model.embeddings("A cat sleeps.").sparse.as_dict())',
    task="feature-extraction",
    call='["A cat sleeps."]',
)

CLASSES = Example(
    command='edgeformer run {name} "Once upon a time, there was a little girl"',
    python='print(model.classify("I like it."))',
    task="text-classification",
    call='"I like it."',
)

EXAMPLES: dict[Gives, Example] = {
    "words": Example(
        command='edgeformer run {name} "The capital of France is {mask}."',
        python='print(model.fill_mask("The capital of France is {mask}."))',
        task="fill-mask",
        call='"The capital of France is {mask}."',
    ),
    "classes": CLASSES,
    "token classes": CLASSES._replace(task="token-classification"),
    "answers": Example(
        command='edgeformer run {name} "A cat sleeps." --question "Who sleeps?"',
        python='print(model.answer("Who sleeps?", "A cat sleeps."))',
        task="question-answering",
        call='"Who sleeps?", "A cat sleeps."',
    ),
    "vector": EMBEDDING,
    "sparse vector": SPARSE,
    "token weights": SPARSE,
    "token vectors": Example(
        command='edgeformer rank {name} "Who sleeps?" "A cat sleeps." "Stocks fell."',
        python='print(model.rank("Who sleeps?", ["A cat sleeps.", "Stocks fell."]))',
        task="feature-extraction",
        call='["A cat sleeps."]',
    ),
}
"""The examples by what the first output of a head gives; a model without a head has EMBEDDING."""

SEEING_VECTORS = EMBEDDING._replace(
    command='edgeformer embed {name} "A cat sleeps." --image cat.jpg --image chart.png',
    python='print(model.embed(["A cat sleeps.", "<image>"], images=[[], ["cat.jpg"]]).shape)',
)
"""The example of an encoder that reads pictures, whatever else it gives."""

SEEING: dict[Gives | None, Example] = {
    "words": EXAMPLES["words"]._replace(
        command='edgeformer run {name} --image cat.jpg "<image>This is a {mask}."',
        python='print(model.fill_mask("<image>This is a {mask}.", images=["cat.jpg"]))',
    ),
    "classes": CLASSES._replace(
        command='edgeformer run {name} --image cat.jpg "<image>"',
        python='print(model.classify("<image>", images=["cat.jpg"]))',
    ),
    "token classes": CLASSES._replace(
        command='edgeformer run {name} --image cat.jpg "<image>A cat sleeps."',
        python='print(model.classify("<image>A cat sleeps.", images=["cat.jpg"]))',
    ),
}
"""The examples of encoders that read pictures."""

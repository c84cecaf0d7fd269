"""Functions that encoders share: the head that `architectures` names, its labels, and the tensor names of norms."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

from edgeformer.config import Activation, ClassificationHead, MaskedLMHead, NormConfig, QuestionAnsweringHead
from edgeformer.config.heads import ProblemType
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields

Head = MaskedLMHead | ClassificationHead | QuestionAnsweringHead | None

# Activations of heads: those without `beta`.
HEAD_ACTIVATIONS: dict[str, Activation] = {
    name: said["activation"] for name, said in ACTIVATIONS.items() if said.keys() == {"activation"}
}


def read_head(fields: Fields, model: str, heads: Mapping[str, Callable[[], Head]]) -> Head:
    """Return the head of the class in `architectures`; None for the plain model, or without `architectures`.

    Args:
        fields: config.json.
        model: prefix of transformers' class names, such as `Bert`.
        heads: functions that make a head, by the suffix of the class name, such as `ForMaskedLM`. Only that of the
            requested class is called, so that config.json needs no fields of other heads.

    Raises:
        ConfigError: `architectures` has another class.
    """
    fields.ignore("_num_labels", "num_labels")
    plain = f"{model}Model"
    makers: dict[str, Callable[[], Head]] = {plain: lambda: None}
    makers |= {f"{model}{task}": make for task, make in heads.items()}
    classes = fields.take("architectures", None) or [plain]
    if len(classes) != 1 or classes[0] not in makers:
        raise ConfigError(
            f"config.json has architectures = {classes!r}, whose head edgeformer does not have; it has those of "
            f"{', '.join(makers)}. For the states alone, which every head reads, change it to [{plain!r}]."
        )
    head = makers[classes[0]]()
    if not isinstance(head, ClassificationHead) or head.pooling is None:
        return head
    return replace(head, problem_type=_read_problem_type(fields))


def _read_problem_type(fields: Fields) -> ProblemType | None:
    kinds: dict[ProblemType | None, ProblemType | None] = {name: name for name in (None, *get_args(ProblemType))}
    return fields.choice("problem_type", kinds, None)


def read_decoder_head(fields: Fields, architectures: object) -> ClassificationHead | None:
    """Return the head of a decoder that classifies texts, by the state of their last token, or tokens; None for others.

    The last token is one that differs from the padding token, wherever a text has that. Source:
    transformers/modeling_layers.py, GenericForSequenceClassification and GenericForTokenClassification.
    """
    name = str(architectures[0]) if isinstance(architectures, list) and len(architectures) == 1 else ""
    if name.endswith("ForSequenceClassification"):
        return ClassificationHead(
            labels=read_labels(fields), pooling="last", bias=False, problem_type=_read_problem_type(fields),
            skipped_token=fields.take("pad_token_id", None),
        )  # fmt: skip
    if name.endswith("ForTokenClassification"):
        return ClassificationHead(labels=read_labels(fields), pooling=None)
    return None


def usual_heads(
    fields: Fields, norm: NormConfig, activation: Callable[[], Activation], dense: Activation | None
) -> dict[str, Callable[[], Head]]:
    """Return the functions that make BERT's heads, for `read_head`.

    activation: of the masked-LM head. dense: activation of the dense layer of the text classification head; None
    without that layer.
    """
    return {
        "ForMaskedLM": lambda: MaskedLMHead(
            activation=activation(), norm=norm, tied=fields.take("tie_word_embeddings", True)
        ),
        "ForSequenceClassification": lambda: ClassificationHead(
            labels=read_labels(fields), pooling="first", dense=dense
        ),
        "ForTokenClassification": lambda: ClassificationHead(labels=read_labels(fields), pooling=None),
        "ForQuestionAnswering": QuestionAnsweringHead,
    }


def read_labels(fields: Fields) -> tuple[str, ...]:
    """Return the names in `id2label` in the order of their ids.

    Without it, or where it names another number of labels than `num_labels`, they are LABEL_0, LABEL_1 … up to
    `num_labels`, whose default is 2, as in transformers. Raises ConfigError if the ids are not 0, 1, 2 …
    """
    named: dict[str, str] | None = fields.take("id2label", None)
    count = fields.take("num_labels", 2 if named is None else len(named))
    if named is None or len(named) != count:
        named = {str(number): f"LABEL_{number}" for number in range(count)}
    by_number = {int(number): name for number, name in named.items()}
    if sorted(by_number) != list(range(count)):
        raise ConfigError(f"config.json has id2label = {named!r}; it must name the labels 0 to {count - 1}, each once.")
    return tuple(str(by_number[number]) for number in range(count))


def layer_norm(ours: str, theirs: str) -> dict[str, str]:
    """Return the tensor names of a LayerNorm; checkpoints that were converted from TensorFlow have gamma and beta."""
    return {f"{ours}.weight": f"{theirs}.weight|{theirs}.gamma", f"{ours}.bias": f"{theirs}.bias|{theirs}.beta"}

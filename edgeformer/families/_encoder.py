"""What encoders have in common: the head that `architectures` names, its labels, and the names of norms."""

from collections.abc import Callable, Mapping

from edgeformer.config import Activation, ClassificationHead, MaskedLMHead, NormConfig
from edgeformer.errors import ConfigError
from edgeformer.families._activations import ACTIVATIONS
from edgeformer.families._family import Fields

Head = MaskedLMHead | ClassificationHead | None

# A head's activation has no `beta`.
HEAD_ACTIVATIONS: dict[str, Activation] = {
    name: said["activation"] for name, said in ACTIVATIONS.items() if said.keys() == {"activation"}
}


def read_head(fields: Fields, model: str, heads: Mapping[str, Callable[[], Head]]) -> Head:
    """Make the head of the class in `architectures`; there is none where that is the plain model, or is absent.

    model: what transformers' classes begin with (`Bert`). heads: makers by the rest of their names (`ForMaskedLM`), so
    that only the fields of the wanted head are asked for.
    """
    fields.ignore("_num_labels", "num_labels")
    plain = f"{model}Model"
    makers: dict[str, Callable[[], Head]] = {plain: lambda: None}
    makers |= {f"{model}{task}": make for task, make in heads.items()}
    classes = fields.take("architectures", [plain])
    if len(classes) != 1 or classes[0] not in makers:
        raise ConfigError(
            f"config.json has architectures = {classes!r}, whose head edgeformer does not have; it has those of "
            f"{', '.join(makers)}. For the states alone, which every head reads, change it to [{plain!r}]."
        )
    return makers[classes[0]]()


def usual_heads(
    fields: Fields, norm: NormConfig, activation: Callable[[], Activation], dense: Activation
) -> dict[str, Callable[[], Head]]:
    """Heads as BERT has them. activation: of the one for masked words; dense: of the one for a text's first token."""
    return {
        "ForMaskedLM": lambda: MaskedLMHead(
            activation=activation(), norm=norm, tied=fields.take("tie_word_embeddings", True)
        ),
        "ForSequenceClassification": lambda: ClassificationHead(
            labels=read_labels(fields), pooling="first", dense=dense
        ),
        "ForTokenClassification": lambda: ClassificationHead(labels=read_labels(fields), pooling=None),
    }


def read_labels(fields: Fields) -> tuple[str, ...]:
    """The names in `id2label` by their number; without it LABEL_0, LABEL_1…, two of them if nothing counts them."""
    named: dict[str, str] | None = fields.take("id2label", None)
    count = fields.take("num_labels", 2 if named is None else len(named))
    if named is None:
        named = {str(number): f"LABEL_{number}" for number in range(count)}
    by_number = {int(number): name for number, name in named.items()}
    if sorted(by_number) != list(range(count)):
        raise ConfigError(f"config.json has id2label = {named!r}; it must name the labels 0 to {count - 1}, each once.")
    return tuple(str(by_number[number]) for number in range(count))


def layer_norm(ours: str, theirs: str) -> dict[str, str]:
    """Table entries of a norm, whose parameters checkpoints that came from TensorFlow call gamma and beta."""
    return {f"{ours}.weight": f"{theirs}.weight|{theirs}.gamma", f"{ours}.bias": f"{theirs}.bias|{theirs}.beta"}

"""ERNIE 1 to 3: BERT; ERNIE 2 and 3 have a table of tasks in addition.

Source: transformers/models/ernie/modeling_ernie.py.
"""

from dataclasses import replace

from edgeformer.config import EncoderConfig
from edgeformer.families import bert
from edgeformer.families._encoder import HEAD_ACTIVATIONS, read_head, usual_heads
from edgeformer.families._family import Fields


def read_config(fields: Fields, context_length: int | None) -> EncoderConfig:
    """Read an ERNIE config.json."""
    fields.ignore("task_type_vocab_size")
    # A graph with the table of tasks would need an input for the task.
    fields.choice("use_task_id", {False: None}, False)
    heads = usual_heads(
        fields, bert.read_norm(fields), lambda: fields.choice("hidden_act", HEAD_ACTIVATIONS, "gelu"), "tanh"
    )
    return bert.read_bert(fields, context_length, read_head(fields, "Ernie", heads))


FAMILY = replace(
    bert.FAMILY,
    summary="ERNIE without tasks; heads of BERT",
    read_config=read_config,
    tensors={**bert.body_tensors("ernie"), **bert.head_tensors("ernie")},
    optional_prefix="ernie.",
)

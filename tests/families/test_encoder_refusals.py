"""Families of encoders refuse by name what they do not support, and read well-known checkpoints."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from encoder_rows import ENCODERS
from huggingface_hub.errors import StrictDataclassFieldValidationError
from slow_rows import slow_unless

from edgeformer.checkpoints.found_model import FoundModel
from edgeformer.checkpoints.source import lacks_family
from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.config import ClassificationHead, MaskedLMHead
from edgeformer.errors import ConfigError
from edgeformer.families import REFUSED, has_family, read_model_config
from edgeformer.manifest.accounting import account


def read(family, context_length=None, **options):
    data = {"model_type": family} | ENCODERS[family].sizes | options
    return read_model_config(data, context_length)[1]


MASKED_LM = {"architectures": ["BertForMaskedLM"]}
LABELS = {"architectures": ["RobertaForSequenceClassification"]}

REFUSALS = [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key', which is not"),
    ("bert", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    (
        "bert",
        {"add_cross_attention": True},
        "add_cross_attention = True, which is not supported here; supported: False",
    ),
    ("bert", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu"),
    ("bert", {"embedding_size": 32}, "fields that the bert family does not know: embedding_size = 32"),
    ("bert", {"num_attention_heads": 5}, "has 5 heads, which do not divide the hidden size, 64"),
    # Heads do not have x · sigmoid(1.702 · x), blocks do.
    ("bert", MASKED_LM | {"hidden_act": "quick_gelu"}, "hidden_act = 'quick_gelu', which is not supported here"),
    (
        "bert",
        {"architectures": ["BertForMultipleChoice"]},
        r"architectures = \['BertForMultipleChoice'\], whose head edgeformer does not have; it has those of "
        r"BertModel, BertForMaskedLM, .*BertForQuestionAnswering. For the states alone, .* it to \['BertModel'\]",
    ),
    ("bert", {"architectures": ["BertForPreTraining"]}, r"architectures = \['BertForPreTraining'\], whose head"),
    ("bert", {"architectures": ["BertModel", "BertForMaskedLM"]}, r"\['BertModel', 'BertForMaskedLM'\], whose head"),
    (
        "bert",
        {"architectures": ["RobertaModel"]},
        r"architectures = \['RobertaModel'\], whose head edgeformer does not",
    ),
    ("xlm-roberta", {"architectures": ["RobertaModel"]}, r"has those of XLMRobertaModel, XLMRobertaForMaskedLM"),
    ("roberta", LABELS | {"id2label": {"0": "no", "2": "yes"}}, "must name the labels 0 to 1, each once"),
    ("bert", {"pruned_heads": {"0": [1]}}, "fields that the bert family does not know: pruned_heads"),
    ("roberta", LABELS | {"num_labels": 0}, "ClassificationHead.labels is .*; it must be at least one label"),
    ("roberta", {"position_embedding_type": "relative_key_query"}, "position_embedding_type = 'relative_key_query'"),
    ("xlm-roberta-xl", {"architectures": ["XLMRobertaModel"]}, r"has those of XLMRobertaXLModel, XLMRobertaXLForMask"),
    ("xlm-roberta-xl", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("xlm-roberta-xl", {"num_attention_heads": 5}, "has 5 heads, which do not divide the hidden size, 64"),
    ("camembert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key', which is"),
    ("camembert", {"architectures": ["CamembertForMultipleChoice"]}, "whose head edgeformer does not have"),
    ("camembert", {"embedding_size": 32}, "fields that the camembert family does not know: embedding_size = 32"),
    ("data2vec-text", {"architectures": ["Data2VecTextForCausalLM"]}, "whose head edgeformer does not have"),
    ("data2vec-text", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("data2vec-text", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here; supported: gelu"),
    ("roberta-prelayernorm", {"architectures": ["RobertaModel"]}, "it has those of RobertaPreLayerNormModel"),
    ("roberta-prelayernorm", {"add_cross_attention": True}, "add_cross_attention = True, which is not supported"),
    ("roberta-prelayernorm", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here"),
    ("megatron-bert", {"architectures": ["MegatronBertForPreTraining"]}, "whose head edgeformer does not have"),
    ("megatron-bert", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("megatron-bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key', which"),
    ("esm", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key', which is not"),
    ("esm", {"is_folding_model": True}, "is_folding_model = True, which is not supported here; supported: False"),
    ("esm", {"token_dropout": True, "mask_token_id": None}, "no mask_token_id; token_dropout = True drops"),
    ("esm", {"pad_token_id": None}, "no pad_token_id; the table of positions begins behind its row"),
    ("esm", {"architectures": ["EsmForProteinFolding"]}, "it has those of EsmModel, EsmForMaskedLM"),
    ("ernie", {"use_task_id": True}, "use_task_id = True, which is not supported here; supported: False"),
    ("ernie", {"architectures": ["ErnieForPreTraining"]}, "whose head edgeformer does not have"),
    ("ernie", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("nomic_bert", {"n_embd": 64}, "fields that the nomic_bert family does not know: n_embd = 64"),
    ("nomic_bert", {"rope_parameters": {"rope_type": "fast"}}, "RoPE scaling 'fast' is not supported; supported: def"),
    ("gte", {"architectures": ["GteForQuestionAnswering"]}, "it has those of GteModel, GteForMaskedLM"),
    ("nomic_bert", {"architectures": ["BertModel"]}, "it has those of NomicBertModel, NomicBertForMaskedLM"),
    ("jina_embeddings_v3", {"lora_rank": 4}, "fields that the jina_embeddings_v3 family does not know: lora_rank = 4"),
    ("jina_embeddings_v3", {"architectures": ["XLMRobertaModel"]}, "it has those of JinaEmbeddingsV3Model"),
    ("jina_embeddings_v3", {"hidden_act": "mish"}, "hidden_act = 'mish', which is not supported here"),
    ("electra", {"architectures": ["ElectraForPreTraining"]}, r"it to \['ElectraModel'\]"),
    ("electra", {"embedding_size": 0}, "embedding_size is 0; it must be positive, or None"),
    ("electra", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups = 2, which is not supported here; supported: 1"),
    ("albert", {"inner_group_num": 2}, "inner_group_num = 2, which is not supported here; supported: 1"),
    ("albert", {"architectures": ["AlbertForPreTraining"]}, "whose head edgeformer does not have"),
    ("deberta", {"talking_head": True}, "talking_head = True, which is not supported here; supported: False"),
    ("deberta", {"pos_att_type": ["p2p"]}, r"pos_att_type = \['p2p'\]; supported here: c2p and p2c, each once"),
    ("deberta", {"embedding_size": 32}, "embedding_size = 32, which is not supported here; supported: 64"),
    ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size = 3, which is not supported here; supported: 0"),
    ("deberta-v2", {"norm_rel_ebd": "rms_norm"}, "norm_rel_ebd = 'rms_norm', which is not supported here; .*none, la"),
    ("deberta-v2", {"pos_att_type": "c2p|c2p"}, r"pos_att_type = 'c2p\|c2p'; supported here: c2p and p2c, each once"),
    ("deberta-v2", {"position_buckets": 1}, "DisentangledConfig.span is 1; it must be more than 1"),
    ("deberta-v2", {"max_relative_positions": 4}, "max_distance is 4; it must be more than 5, or None"),
    ("deberta-v2", {"architectures": ["DebertaForMaskedLM"]}, r"has those of DebertaV2Model, DebertaV2ForMaskedLM"),
    ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16, which is not supported"),
    ("mpnet", {"is_decoder": True}, "is_decoder = True, which is not supported here; supported: False"),
    ("mpnet", {"architectures": ["MPNetForMultipleChoice"]}, "whose head edgeformer does not have"),
    (
        "eurobert",
        {"architectures": ["EuroBertForSequenceClassification"]},
        "classifier_pooling = 'late', which is not supported here; supported: bos, mean",
    ),
    ("eurobert", {"num_key_value_heads": 3}, r"num_kv_heads is 3; it must be a divisor of num_heads \(4\)"),
    ("eurobert", {"sliding_window": 8}, "fields that the eurobert family does not know: sliding_window = 8"),
    ("distilbert", {"n_heads": 6}, "has 6 heads, which do not divide the hidden size, 64"),
    ("distilbert", {"hidden_size": 64}, "fields that the distilbert family does not know: hidden_size = 64"),
    (
        "distilbert",
        {"architectures": ["DistilBertForMultipleChoice"]},
        r"architectures = \['DistilBertForMultipleChoice'\], whose head edgeformer does not have",
    ),
    (
        "modernbert",
        {"classifier_pooling": "max"},
        "classifier_pooling = 'max', which is not supported here; .*cls, mean",
    ),
    ("modernbert", {"classifier_activation": "quick_gelu"}, "classifier_activation = 'quick_gelu', which is not"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types of 1 layers and num_hidden_layers = 4"),
    ("modernbert", {"layer_types": ["chunked_attention"] * 4}, "layer_types have 'chunked_attention'; supported here"),
    ("modernbert", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "family does not know: rope_scaling = "),
    ("modernbert", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters have rope_theta; here they are given by"),
    ("modernbert", {"position_embedding_type": "sans_pos"}, "position_embedding_type = 'sans_pos', which is not"),
    ("modernbert", {"global_attn_every_n_layers": 0}, "config.json is not one of a modernbert model"),
    (
        "longformer",
        {"architectures": ["LongformerForQuestionAnswering"]},
        r"every token of the question is global, .* For the states alone, change it to \['LongformerModel'\]",
    ),
    ("longformer", {"attention_window": 7}, "attention_window = 7; windows are positive even numbers"),
    ("longformer", {"attention_window": [8, 0, 8]}, "attention_window = 0; windows are positive even numbers"),
    ("longformer", {"attention_window": [8, 8]}, "attention_window of 2 layers and num_hidden_layers = 3"),
    (
        "longformer",
        {"attention_mode": "n2"},
        "attention_mode = 'n2', which is not supported here; supported: longformer",
    ),
    ("longformer", {"ignore_attention_mask": True}, "ignore_attention_mask = True, which is not supported here"),
]


@pytest.mark.parametrize(("family", "options", "message"), REFUSALS)
def test_what_is_not_computed_is_refused_by_name(family, options, message):
    with pytest.raises(ConfigError, match=message):
        read(family, **options)


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_no_block_expresses_is_refused_with_the_reason(model_type):
    """The types are those of transformers or of code in a repository, and no other backend is tried for them."""
    assert (model_type in transformers.CONFIG_MAPPING) == (model_type != "new")
    assert not has_family(model_type)
    message = f"model_type '{model_type}' is not supported: {re.escape(REFUSED[model_type])}. `edgeformer models` lists"
    with pytest.raises(ConfigError, match=message):
        read_model_config({"model_type": model_type, "vocab_size": 8})
    found = FoundModel(
        name="", origin="", folder=Path("nowhere"), modules=Path("nowhere"), hf_config={"model_type": model_type}
    )
    assert not lacks_family(found)


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("length", [0, 49])
def test_a_context_beyond_the_positions_is_refused(family, length):
    """The first two of RoBERTa's fifty rows are not positions of tokens."""
    with pytest.raises(ConfigError, match=f"--context-length is {length}; this model has positions 1 to 48"):
        read(family, length)
    assert read(family, 20).context_length == 20


@pytest.mark.parametrize("labels", [{"0": "a", "1": "b", "2": "c"}, {"0": "a"}])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_id2label_of_another_count_is_read(labels, count):
    theirs = transformers.RobertaConfig.from_dict({"id2label": dict(labels), "num_labels": count})
    ours = read("roberta", **LABELS, id2label=labels, num_labels=count)
    assert ours.head.labels == tuple(theirs.id2label[number] for number in range(theirs.num_labels))


OLD = {
    "pruned_heads": {}, "torchscript": False, "use_bfloat16": False, "do_sample": False, "top_k": 50, "top_p": 1.0,
    "temperature": 1.0, "num_return_sequences": 1, "diversity_penalty": 0.0, "num_beam_groups": 1, "prefix": None,
    "encoder_no_repeat_ngram_size": 0, "is_encoder_decoder": False, "is_decoder": False, "sep_token_id": None,
    "tie_encoder_decoder": False, "cross_attention_hidden_size": None, "add_cross_attention": False, "xla_device": None,
    "remove_invalid_values": False, "return_dict_in_generate": False, "output_scores": False, "typical_p": 1.0,
    "exponential_decay_length_penalty": None, "tf_legacy_loss": False, "finetuning_task": None, "num_labels": 2,
}  # fmt: skip


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "mpnet"])
def test_fields_of_old_versions_that_do_nothing_are_read_past(family):
    assert read(family, **OLD) == read(family)


def test_labels_are_in_the_order_of_their_numbers():
    names = {str(number): f"kind {number}" for number in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)}
    assert read("roberta", **LABELS, id2label=names).head.labels == tuple(f"kind {number}" for number in range(11))
    assert read("roberta", **LABELS).head.labels == ("LABEL_0", "LABEL_1")
    assert read("roberta", **LABELS, num_labels=3).head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_a_window_as_wide_as_the_context_is_none():
    """Visibility is not a table: that would grow with the square of the text."""
    assert {block.attention.window for block in read("modernbert", local_attention=96).blocks} == {None}
    assert [block.attention.window for block in read("longformer", attention_window=[96, 94, 2]).blocks] == [
        None, None, 2,
    ]  # fmt: skip
    assert [block.attention.window for block in read("longformer", 47, attention_window=92).blocks] == [None] * 3
    assert [block.attention.window for block in read("longformer", 48, attention_window=92).blocks] == [47] * 3


# As transformers 4 wrote them; typed from memory, not downloaded.
DROPOUTS = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
BERT = {
    **DROPOUTS, "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2, "use_cache": True,
    "vocab_size": 30522, "gradient_checkpointing": False, "transformers_version": "4.6.0.dev0",
}  # fmt: skip
ROBERTA = {
    **DROPOUTS, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_size": 768,
    "intermediate_size": 3072, "layer_norm_eps": 1e-5, "max_position_embeddings": 514, "model_type": "roberta",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
}  # fmt: skip
REAL = {
    "google-bert/bert-base-uncased": BERT | {
        "architectures": ["BertForMaskedLM"], "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "num_hidden_layers": 12,
    },
    "google-bert/bert-base-multilingual-cased": BERT | {
        "architectures": ["BertForMaskedLM"], "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "num_hidden_layers": 12, "vocab_size": 119547, "directionality": "bidi", "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
    },
    "dslim/bert-base-NER": BERT | {
        "_num_labels": 9, "architectures": ["BertForTokenClassification"], "hidden_size": 768,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "max_length": 512,
        "output_past": True, "vocab_size": 28996,
        "id2label": {str(number): name for number, name in enumerate(("O", "B-PER", "I-PER", "B-ORG", "I-ORG"))},
    },
    "sentence-transformers/all-MiniLM-L6-v2": BERT | {
        "architectures": ["BertModel"], "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12,
        "num_hidden_layers": 6, "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
    },
    "FacebookAI/roberta-base": ROBERTA | {"architectures": ["RobertaForMaskedLM"], "vocab_size": 50265},
    "FacebookAI/xlm-roberta-base": ROBERTA | {
        "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True,
        "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 250002,
    },
    "facebook/xlm-roberta-xl": ROBERTA | {
        "architectures": ["XLMRobertaXLForMaskedLM"], "hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "xlm-roberta-xl", "num_attention_heads": 32, "num_hidden_layers": 36,
        "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 250880,
    },
    "almanach/camembert-base": ROBERTA | {
        "architectures": ["CamembertForMaskedLM"], "model_type": "camembert", "output_past": True, "vocab_size": 32005,
    },
    "facebook/data2vec-text-base": ROBERTA | {
        "architectures": ["Data2VecTextForMaskedLM"], "classifier_dropout": None, "model_type": "data2vec-text",
        "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 50265,
    },
    "andreasmadsen/efficient_mlm_m0.40": ROBERTA | {
        "architectures": ["RobertaPreLayerNormForMaskedLM"], "hidden_size": 1024, "intermediate_size": 4096,
        "model_type": "roberta-prelayernorm", "num_attention_heads": 16, "num_hidden_layers": 24,
        "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 50265,
    },
    "KBLab/megatron-bert-large-swedish-cased-165k": BERT | {
        "architectures": ["MegatronBertForMaskedLM"], "hidden_size": 1024, "intermediate_size": 4096,
        "model_type": "megatron-bert", "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 64128,
    },
    "nghuyong/ernie-2.0-base-en": BERT | {
        "architectures": ["ErnieModel"], "hidden_act": "relu", "hidden_size": 768, "intermediate_size": 3072,
        "layer_norm_eps": 1e-5, "model_type": "ernie", "num_attention_heads": 12, "num_hidden_layers": 12,
        "task_type_vocab_size": 3, "type_vocab_size": 4, "use_task_id": False,
    },
    "nomic-ai/nomic-embed-text-v1.5": {
        "architectures": ["NomicBertModel"], "attention_probs_dropout_prob": 0.0, "hidden_act": "silu",
        "hidden_dropout_prob": 0.0, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 2048, "model_type": "nomic_bert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "type_vocab_size": 2, "vocab_size": 30528,
    },
    "jinaai/jina-embeddings-v3-hf": ROBERTA | {
        "architectures": ["JinaEmbeddingsV3Model"], "hidden_size": 1024, "intermediate_size": 4096,
        "max_position_embeddings": 8194, "model_type": "jina_embeddings_v3", "num_attention_heads": 16,
        "num_hidden_layers": 24, "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
        "vocab_size": 250002,
    },
    "Alibaba-NLP/gte-multilingual-base": {
        "architectures": ["GteModel"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 8192, "model_type": "gte",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}, "type_vocab_size": 1,
        "vocab_size": 250048,
    },
    "facebook/esm2_t6_8M_UR50D": {
        "architectures": ["EsmForMaskedLM"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": None,
        "emb_layer_norm_before": False, "esmfold_config": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "hidden_size": 320, "initializer_range": 0.02, "intermediate_size": 1280, "is_folding_model": False,
        "layer_norm_eps": 1e-5, "mask_token_id": 32, "max_position_embeddings": 1026, "model_type": "esm",
        "num_attention_heads": 20, "num_hidden_layers": 6, "pad_token_id": 1, "position_embedding_type": "rotary",
        "token_dropout": True, "use_cache": True, "vocab_list": None, "vocab_size": 33,
    },
    "google/electra-small-generator": BERT | {
        "architectures": ["ElectraForMaskedLM"], "embedding_size": 128, "hidden_size": 256, "intermediate_size": 1024,
        "model_type": "electra", "num_attention_heads": 4, "num_hidden_layers": 12, "summary_activation": "gelu",
        "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
    },
    "albert/albert-base-v2": BERT | {
        "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
        "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3,
        "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "hidden_size": 768, "inner_group_num": 1,
        "intermediate_size": 3072, "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12,
        "num_hidden_groups": 1, "num_hidden_layers": 12, "num_memory_blocks": 0, "vocab_size": 30000,
    },
    "microsoft/deberta-base": DROPOUTS | {
        "architectures": ["DebertaForMaskedLM"], "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072,
        "layer_norm_eps": 1e-7, "max_position_embeddings": 512, "max_relative_positions": -1, "model_type": "deberta",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "padding_idx": 0,
        "pos_att_type": "c2p|p2c", "position_biased_input": False, "relative_attention": True, "type_vocab_size": 0,
        "vocab_size": 50265,
    },
    "microsoft/deberta-v3-base": DROPOUTS | {
        "architectures": ["DebertaV2Model"], "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072,
        "layer_norm_eps": 1e-7, "max_position_embeddings": 512, "max_relative_positions": -1,
        "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pos_att_type": "p2c|c2p", "position_biased_input": False, "position_buckets": 256, "relative_attention": True,
        "share_att_key": True, "type_vocab_size": 0, "vocab_size": 128100,
    },
    "sentence-transformers/all-mpnet-base-v2": DROPOUTS | {
        "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"], "bos_token_id": 0,
        "eos_token_id": 2, "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514, "model_type": "mpnet", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 1, "relative_attention_num_buckets": 32, "vocab_size": 30527,
    },
    "EuroBERT/EuroBERT-210m": {
        "architectures": ["EuroBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "classifier_pooling": "late", "eos_token_id": 128001,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "mask_token_id": 128002, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "eurobert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "num_key_value_heads": 12, "pad_token_id": 128001,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 250000,
        "tie_word_embeddings": False, "use_cache": False, "vocab_size": 128256,
    },
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": {
        "activation": "gelu", "architectures": ["DistilBertForSequenceClassification"], "attention_dropout": 0.1,
        "dim": 768, "dropout": 0.1, "finetuning_task": "sst-2", "hidden_dim": 3072,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "initializer_range": 0.02,
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "max_position_embeddings": 512, "model_type": "distilbert",
        "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
    },
    "answerdotai/ModernBERT-base": {
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu",
        "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
        "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192,
        "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
        "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
        "position_embedding_type": "absolute", "reference_compile": None, "repad_logits_with_grad": False,
        "sep_token_id": 50282, "sparse_pred_ignore_index": -100, "sparse_prediction": False,
        "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 50368,
    },
    "allenai/longformer-base-4096": ROBERTA | {
        "architectures": ["LongformerForMaskedLM"], "attention_mode": "longformer", "attention_window": [512] * 12,
        "ignore_attention_mask": False, "max_position_embeddings": 4098, "model_type": "longformer",
        "sep_token_id": 2, "vocab_size": 50265,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_a_real_config_is_read_as_its_model(name):
    """It has the parameters of transformers' class, except those that do not influence its outputs."""
    data = REAL[name]
    config = read_model_config(data)[1]
    kind = getattr(transformers, data["architectures"][0])
    with torch.device("meta"):
        model = kind(transformers.CONFIG_MAPPING[data["model_type"]].from_dict(data))
    unused = ("_global.", "pooler.", "contact_head.") if not isinstance(config.head, ClassificationHead) else ()
    theirs = {
        id(parameter): parameter.numel()
        for name, parameter in model.named_parameters()
        if not any(part in name for part in unused)
    }
    ours = sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values())
    assert ours == account(config).parameters == sum(theirs.values())
    assert isinstance(config.head, MaskedLMHead) == data["architectures"][0].endswith("ForMaskedLM")
    attention = config.blocks[1].attention
    assert (attention.window, attention.rotary and attention.rotary.base, config.context_length) == {
        "modernbert": (65, 10000.0, 8192), "longformer": (257, None, 4096), "nomic_bert": (None, 1000.0, 2048),
        "jina_embeddings_v3": (None, 20000.0, 8194), "gte": (None, 20000.0, 8192), "eurobert": (None, 250000.0, 8192),
        "esm": (None, 10000.0, 1026),
    }.get(data["model_type"], (None, None, 512))  # fmt: skip


def rewritten(config):
    """Return the config.json that transformers 5 writes after reading this one."""
    return json.loads(transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config).to_json_string())


@pytest.mark.parametrize("name", REAL)
def test_what_transformers_5_makes_of_it_means_the_same(name):
    assert read_model_config(rewritten(REAL[name]))[1] == read_model_config(REAL[name])[1]


FAST = {"bert", "modernbert", "deberta-v2"}


@pytest.mark.parametrize("family", slow_unless(FAST, ENCODERS))
def test_an_absent_or_null_field_means_what_it_does_in_hf(family):
    """Leave out, or set to null, each field of the family's models: it is refused, or read as transformers does."""
    compared = set()
    for options in ENCODERS[family].models.values():
        options = {name: value for name, value in options.items() if name not in ("head", "pooling")}
        whole = rewritten({"model_type": family} | ENCODERS[family].sizes | options)
        whole["max_position_embeddings"] = 1 << 17  # longer than default windows, which otherwise would be none
        for name in whole.keys() - {"model_type"}:
            without = {key: value for key, value in whole.items() if key != name}
            for changed in (without, without | {name: None}):
                try:
                    ours, theirs = read_model_config(changed)[1], rewritten(changed)
                except (ConfigError, StrictDataclassFieldValidationError):  # we refuse it, or transformers does
                    continue
                assert ours == read_model_config(theirs)[1], (name, changed.get(name, "absent"))
                compared.add(name)
    assert len(compared) >= 8, compared

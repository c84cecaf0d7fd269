"""Qwen3-VL with experts: the tower of Qwen3-VL.

Source: transformers/models/qwen3_vl_moe/modeling_qwen3_vl_moe.py.
"""

from dataclasses import replace

from edgeformer.families.picture_text.any_size import qwen3_vl

FAMILY = replace(
    qwen3_vl.FAMILY,
    summary="Qwen3-VL with experts: pictures of any size in several blocks of the text model, and text; no videos",
)

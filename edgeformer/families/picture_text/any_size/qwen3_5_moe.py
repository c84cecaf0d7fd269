"""Qwen3.5 with experts and pictures: the tower of Qwen3.5.

Source: transformers/models/qwen3_5_moe/modeling_qwen3_5_moe.py.
"""

from dataclasses import replace

from edgeformer.families.picture_text.any_size import qwen3_5

FAMILY = replace(qwen3_5.FAMILY, summary="Qwen3.5 with experts: pictures of any size, and text; videos are left out")

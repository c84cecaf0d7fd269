"""PLBart: BART for programming languages.

Source: transformers/models/plbart/modeling_plbart.py.
"""

from dataclasses import replace

from edgeformer.families import bart

FAMILY = replace(bart.FAMILY, summary="PLBart", defaults={"activation_function": "gelu", "scale_embedding": True})

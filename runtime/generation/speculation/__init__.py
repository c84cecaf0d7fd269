"""Speculation: cheap drafts of the next tokens, verified by one run of the model, which is the only one that chooses.

    drafter         prompt_lookup.py            tokens that may come next, of the text itself
                    draft_model.py              … by a smaller model
                    multi_token.py              … by a layer of the model itself
                    forced_tokens.py            … that structured output forces
    how many        draft_length.py             as many as pay, by what runs cost and how many drafts come true
    verification    row_drafts.py               one run over the last token and its draft; what is wrong is taken back

The scheduler's step of a single row asks for a draft, and chooses tokens from the logits after each as long as they are
those of the draft. So rules, sampling, log-probabilities and structured output see what they would see without
speculation, in the same order, and draw the same random numbers.
"""

from edgeformer.runtime.generation.speculation.draft_length import DraftLength
from edgeformer.runtime.generation.speculation.draft_model import DraftModel, check_same_tokens
from edgeformer.runtime.generation.speculation.drafter import Drafter
from edgeformer.runtime.generation.speculation.forced_tokens import ForcedTokens, forced_length
from edgeformer.runtime.generation.speculation.multi_token import MultiTokenPrediction, keep_states
from edgeformer.runtime.generation.speculation.prompt_lookup import PromptLookup
from edgeformer.runtime.generation.speculation.statistics import SpeculationStatistics

__all__ = [
    "DraftLength",
    "DraftModel",
    "Drafter",
    "ForcedTokens",
    "MultiTokenPrediction",
    "PromptLookup",
    "SpeculationStatistics",
    "check_same_tokens",
    "forced_length",
    "keep_states",
]

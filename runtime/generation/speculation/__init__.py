"""Speculation: cheap drafts of the next tokens, verified by one run of the model, which is the only one that chooses.

    drafter         prompt_lookup.py            tokens that may come next, of the text itself
                    draft_model.py              … by a smaller model
                    forced_tokens.py            … that structured output forces
    how many        draft_length.py             as many as pay, by what runs cost and how many drafts come true
    verification    speculative_decoder.py      one run over the last token and its draft; what is wrong is taken back

The loop of `generate` sees a decoder like any other: it asks for the logits after one token at a time, and
`SpeculativeDecoder` has those of the tokens that it foresaw already. So rules, sampling, log-probabilities and
structured output see what they would see without speculation, in the same order, and draw the same random numbers.
"""

from edgeformer.runtime.generation.speculation.draft_length import DraftLength
from edgeformer.runtime.generation.speculation.draft_model import DraftModel, check_same_tokens
from edgeformer.runtime.generation.speculation.forced_tokens import ForcedTokens, forced_length
from edgeformer.runtime.generation.speculation.prompt_lookup import PromptLookup
from edgeformer.runtime.generation.speculation.speculative_decoder import Drafter, SpeculativeDecoder
from edgeformer.runtime.generation.speculation.statistics import SpeculationStatistics

__all__ = [
    "DraftLength",
    "DraftModel",
    "Drafter",
    "ForcedTokens",
    "PromptLookup",
    "SpeculationStatistics",
    "SpeculativeDecoder",
    "check_same_tokens",
    "forced_length",
]

"""Score a bundle: exact match on questions with one right answer, and perplexity on a text.

from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation import evaluate, read_questions
result = evaluate(load("tiny-llama"), read_questions("my-questions.jsonl"))
print(result.total.exact, result.total.interval, result.total.perplexity)

questions.py reads question files; exact_match.py asks them; scores.py aggregates the answers; perplexity.py scores a
text that a decoder reads.
"""

from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.perplexity import TextScore, score_text
from edgeformer.runtime.measure.evaluation.questions import Question, preset_questions, read_questions
from edgeformer.runtime.measure.evaluation.scores import Answer, Evaluation, SkillScore

__all__ = [
    "Answer",
    "Evaluation",
    "Question",
    "SkillScore",
    "TextScore",
    "evaluate",
    "preset_questions",
    "read_questions",
    "score_text",
]

"""Time edgeformer's first token behind a picture, and behind another question about it.

python edgeformer_run.py BUNDLE PICTURE.npy THREADS
"""

import json
import resource
import sys
import time

import numpy as np

from edgeformer.runtime import load

QUESTIONS = ("What is in the picture?", "Who is this, and when was it?")

model, picture = load(sys.argv[1], threads=int(sys.argv[3])), np.load(sys.argv[2])


def ask(question: str, shown: np.ndarray) -> tuple[float, int]:
    """Return the seconds to the first token of an answer, and the tokens of the prompt."""
    parts = [{"type": "image"}, {"type": "text", "text": question}]
    start = time.perf_counter()
    answer = model.chat([{"role": "user", "content": parts}], images=[shown], max_new_tokens=1).finish()
    return time.perf_counter() - start, answer.prompt_tokens


other = picture.copy()
other[0, 0, 0] ^= 1  # another picture, so that nothing is known of the one that is timed
ask(QUESTIONS[0], other)
first, tokens = ask(QUESTIONS[0], picture)
second, _ = ask(QUESTIONS[1], picture)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"first": first, "second": second, "tokens": tokens, "peak_mib": peak}))

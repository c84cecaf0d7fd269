"""Time OpenVINO GenAI's first token behind a picture.

    python openvino_genai_run.py FOLDER PICTURE.npy THREADS

FOLDER is what `optimum-cli export openvino --task image-text-to-text --weight-format int4 --group-size 64` writes.
"""

import json
import resource
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai

picture = np.load(sys.argv[2])
pipeline = genai.VLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=int(sys.argv[3]))
config = genai.GenerationConfig()
config.max_new_tokens = 1


def ask(shown: np.ndarray) -> tuple[float, int]:
    """Return the seconds to the first token of an answer, and the tokens of the prompt."""
    start = time.perf_counter()
    result = pipeline.generate("What is in the picture?", images=[openvino.Tensor(shown)], generation_config=config)
    return time.perf_counter() - start, result.perf_metrics.get_num_input_tokens()


other = picture.copy()
other[0, 0, 0] ^= 1
ask(other)
first, tokens = ask(picture)
second, _ = ask(picture)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"first": first, "second": second, "tokens": tokens, "peak_mib": peak}))

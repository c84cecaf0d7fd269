"""How fast does a bundle run here, and how near is that to what the machine can do?

from edgeformer.runtime.benchmarking import benchmark
result = benchmark("SmolLM2-135M", prompts=(128, 512), batch_sizes=(1, 8))
print(result.workloads[0].decode.tokens_per_second.median)

measure.py runs everything in turns; workloads.py is one request; machine.py, what the machine can do; costs.py, what a
token costs; startup.py, loading and memory in a fresh process; profile.py, where the time goes; result.py, the figures;
roofline.py draws them.
"""

from edgeformer.runtime.benchmarking.measure import benchmark
from edgeformer.runtime.benchmarking.result import BenchmarkResult

__all__ = ["BenchmarkResult", "benchmark"]

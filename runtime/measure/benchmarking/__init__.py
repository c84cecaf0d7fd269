"""Measure how fast a bundle runs on this machine, and which fraction of the machine's peak rates it reaches.

from edgeformer.runtime.measure.benchmarking import benchmark
result = benchmark("SmolLM2-135M", prompts=(128, 512), batch_sizes=(1, 8))
print(result.workloads[0].decode.tokens_per_second.median)

measure.py runs all measurements in turns; workloads.py runs one request; machine.py measures peak rates of the machine;
costs.py computes FLOPs and bytes per token; startup.py measures loading and memory in a fresh process; profile.py
measures time per op; result.py has the figures as dataclasses; roofline.py draws them.
"""

from edgeformer.runtime.measure.benchmarking.measure import benchmark
from edgeformer.runtime.measure.benchmarking.result import BenchmarkResult

__all__ = ["BenchmarkResult", "benchmark"]

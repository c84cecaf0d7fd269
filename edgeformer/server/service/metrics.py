"""Metrics in the text format of Prometheus, at /metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeformer.server.service.records import Record
from edgeformer.server.service.served import ServedModels

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of histograms: from a tiny model's token to a long answer."""

GAUGES = {
    "waiting": "requests in the queue",
    "running": "requests in rows",
    "rows": "rows of the engine",
    "cache_bytes": "bytes of the key-value cache",
    "held_bytes": "bytes of rows that are held for later requests",
    "prefix_bytes": "bytes of prefixes that are kept",
}
COUNTERS = {
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts that were kept and not run",
    "generated_tokens": "generated tokens",
    "drafted_tokens": "tokens that were drafted",
    "accepted_tokens": "drafted tokens that were chosen",
    "finished": "requests that ended by themselves",
    "cancelled": "requests that were cancelled",
    "failed": "requests that failed",
}
"""Fields of `EngineStatistics` that are shown, with what they count."""


@dataclass(frozen=True)
class ModelMetrics:
    """The histograms of one model."""

    first_token: Histogram
    inter_token: Histogram


class EngineCollector(Collector):
    """Reads the statistics of all engines when Prometheus asks."""

    def __init__(self, models: ServedModels):
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield a metric for each statistic, with a value for each model."""
        statistics = {served.name: served.engine.statistics() for served in self._models.bases}
        for name, what in GAUGES.items():
            gauge = GaugeMetricFamily(f"edgeformer_{name}", f"Now: {what}.", labels=["model"])
            for model, values in statistics.items():
                gauge.add_metric([model], getattr(values, name))
            yield gauge
        for name, what in COUNTERS.items():
            counter = CounterMetricFamily(f"edgeformer_{name}", f"Since the start: {what}.", labels=["model"])
            for model, values in statistics.items():
                counter.add_metric([model], getattr(values, name))
            yield counter


class Metrics:
    """All metrics of a server, in a registry of its own."""

    def __init__(self, models: ServedModels):
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "edgeformer_requests", "Requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._request_seconds = Histogram(
            "edgeformer_request_seconds", "Duration of requests.", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._first_token = Histogram(
            "edgeformer_time_to_first_token_seconds",
            "From the request to its first token.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._inter_token = Histogram(
            "edgeformer_inter_token_seconds",
            "From token to token of a request.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self.open_requests = Gauge("edgeformer_open_requests", "Requests being answered.", registry=self._registry)
        self._registry.register(EngineCollector(models))

    def of_model(self, name: str) -> ModelMetrics:
        """Return the histograms of a model."""
        return ModelMetrics(self._first_token.labels(name), self._inter_token.labels(name))

    def count(self, record: Record, route: str) -> None:
        """Count a request that has been answered. route: its pattern, so that odd paths add no labels."""
        self._requests.labels(route, str(record.status)).inc()
        self._request_seconds.labels(route).observe(record.seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

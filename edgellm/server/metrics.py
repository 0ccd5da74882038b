"""Counters and histograms for Prometheus: llama.cpp's names and vLLM's, under one prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgellm.core.results import Completion
from edgellm.engine.info import LLMStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """What the server counts. stats: the books of the engines that are open, read at every scrape."""

    def __init__(self, prefix: str, stats: Callable[[], Iterable[LLMStats]]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"{prefix}:{name}", text, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{prefix}:{name}", text, registry=self.registry, buckets=buckets)

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens processed")
        self._cached_tokens = counter("prompt_tokens_cached", "Prompt tokens that were in the cache already")
        self._prompt_seconds = counter("prompt_seconds", "Seconds spent on prompts")
        self._predicted = counter("tokens_predicted", "Tokens generated")
        self._predicted_seconds = counter("tokens_predicted_seconds", "Seconds spent generating")
        self.requests = Counter(
            f"{prefix}:http_requests", "Requests by route and status", ["route", "status"], registry=self.registry
        )
        self._first = histogram("time_to_first_token_seconds", "From arrival to the first token", _SECONDS)
        self._between = histogram("inter_token_latency_seconds", "Mean time between tokens of a request", _SECONDS)
        self._whole = histogram("e2e_request_latency_seconds", "From arrival to the last token", _SECONDS)
        self._queue = histogram("request_queue_time_seconds", "Waiting before the first step", _SECONDS)
        self._in = histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self._out = histogram("request_generation_tokens", "Generated tokens of a request", _TOKENS)
        self.registry.register(_Engines(prefix, stats, self))
        self.longest = 0
        self.prompt_rate = self.predicted_rate = 0.0

    def observe(self, completion: Completion) -> None:
        """Count a finished request."""
        usage, timings = completion.usage, completion.timings
        computed = usage.prompt_tokens - usage.cached_tokens
        self._prompt_tokens.inc(computed)
        self._cached_tokens.inc(usage.cached_tokens)
        self._prompt_seconds.inc(timings.prefill)
        self._predicted.inc(usage.completion_tokens)
        self._predicted_seconds.inc(timings.decode)
        self._first.observe(timings.first_token)
        self._queue.observe(timings.queue)
        self._whole.observe(timings.queue + timings.prefill + timings.decode)
        self._in.observe(usage.prompt_tokens)
        self._out.observe(usage.completion_tokens)
        longest = max(len(c.token_ids) for c in completion.choices)
        if longest > 1:
            self._between.observe(timings.decode / (longest - 1))
        self.longest = max(self.longest, usage.prompt_tokens + longest)
        if timings.prefill > 0:
            self.prompt_rate = computed / timings.prefill
        if timings.decode > 0:
            self.predicted_rate = usage.completion_tokens / timings.decode

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)


_DISK = (
    ("prefix_cache_disk_pages_read", "Pages of the prefix cache that came back from files", "read_pages"),
    ("prefix_cache_disk_bytes_read", "Their bytes", "read_bytes"),
    ("prefix_cache_disk_pages_written", "Pages of the prefix cache written to files", "written_pages"),
    ("prefix_cache_disk_bytes_written", "Their bytes", "written_bytes"),
    ("prefix_cache_disk_pages_lost", "Pages evicted faster than the disk takes them", "lost_pages"),
    ("prefix_cache_disk_pages_removed", "Files removed to keep the limit", "removed_pages"),
    ("prefix_cache_disk_files_damaged", "Files that were not as they should be", "damaged_files"),
)
"""Counters of --prefix-cache-dir: name, text, field of StoreStats."""


class _Engines(Collector):
    """Numbers that the engines keep themselves."""

    def __init__(self, prefix: str, stats: Callable[[], Iterable[LLMStats]], metrics: Metrics) -> None:
        self._prefix, self._stats, self._metrics = prefix, stats, metrics

    def describe(self) -> Iterator[Metric]:
        """Nothing beforehand."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """One family per number, summed over the open models."""
        open_models = list(self._stats())
        steps = sum(s.steps for s in open_models)
        tokens = sum(s.tokens for s in open_models)
        running, waiting = sum(s.running for s in open_models), sum(s.waiting for s in open_models)
        used, pages = sum(s.pages_used for s in open_models), sum(s.pages for s in open_models)
        gauges = (
            ("requests_processing", "Sequences being computed", running),
            ("requests_deferred", "Sequences waiting", waiting),
            ("num_requests_running", "Sequences being computed", running),
            ("num_requests_waiting", "Sequences waiting", waiting),
            ("kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1", used / pages if pages else 0.0),
            ("n_busy_slots_per_decode", "Tokens a step, on average", tokens / steps if steps else 0.0),
            ("n_tokens_max", "Longest sequence so far", self._metrics.longest),
            ("prompt_tokens_seconds", "Prompt tokens a second of the last request", self._metrics.prompt_rate),
            ("predicted_tokens_seconds", "Generated tokens a second of the last one", self._metrics.predicted_rate),
            ("models_loaded", "Models in memory", len(open_models)),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"{self._prefix}:{name}", text, value=value)
        disks = [s.disk for s in open_models if s.disk is not None]
        counters: list[tuple[str, str, float]] = [
            ("n_decode", "Steps computed", steps),
            ("spec_decode_num_draft_tokens", "Tokens guessed", sum(s.guessed for s in open_models)),
            ("spec_decode_num_accepted_tokens", "Guesses that were right", sum(s.accepted for s in open_models)),
            *((name, text, sum(getattr(d, field) for d in disks)) for name, text, field in _DISK if disks),
        ]
        for name, text, value in counters:
            yield CounterMetricFamily(f"{self._prefix}:{name}", text, value=value)

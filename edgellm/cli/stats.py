"""One line of figures about a completion."""

from __future__ import annotations

from edgellm.core.results import Completion


def rates(c: Completion) -> tuple[float, float]:
    """Tokens per second of the prompt and of the answer; 0 where there is nothing to divide."""
    u, t = c.usage, c.timings
    decode = (u.completion_tokens - 1) / t.decode if t.decode > 0 and u.completion_tokens > 1 else 0.0
    return (u.prompt_tokens / t.prefill if t.prefill > 0 else 0.0), decode


def stats_line(c: Completion) -> str:
    """Everything, the seed included."""
    prefill, decode = rates(c)
    return (
        f"[prompt {c.usage.prompt_tokens} tokens, {prefill:.0f} t/s · answer {c.usage.completion_tokens} tokens, "
        f"{decode:.0f} t/s · first token {c.timings.first_token * 1e3:.0f} ms · seed {c.seed} · {c.finish_reason}]"
    )


def short_line(c: Completion, n_ctx: int) -> str:
    """What somebody at a terminal may want to know. n_ctx: 0 where nobody knows."""
    used = f", {100 * c.usage.total_tokens / n_ctx:.0f} % of the context used" if n_ctx else ""
    return f"[{c.usage.completion_tokens} tokens, {rates(c)[1]:.0f} t/s{used}]"

"""Requests that are wrong in every way, sent to the application without a socket; used by a test and by a long run.

python tests/server/fuzzing.py 50000 [SEED]
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parents[2])]

from serving.tiny import install, saying, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.server.app import GET, POST, build
from edgellm.server.models import Entry
from edgellm.server.served import ServedLLM
from edgellm.server.settings import Settings

TALK = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"messages": TALK, "max_tokens": 4, "temperature": 0.5, "seed": 1},
    "prompt": {"prompt": "hello", "max_tokens": 4},
    "input": {"input": "hello", "max_output_tokens": 4},
    "tokens": {"tokens": [1, 2, 3]},
    "content": {"content": "hello world"},
    "ollama": {"model": "tiny", "messages": TALK, "options": {"num_predict": 3}},
    "generate": {"model": "tiny", "prompt": "hello", "input": "hello"},
}
FIELDS = (
    "model messages prompt input max_tokens max_completion_tokens n_predict temperature top_p top_k min_p n stop seed "
    "stream stream_options logprobs top_logprobs logit_bias tools tool_choice response_format echo suffix best_of "
    "presence_penalty frequency_penalty repeat_penalty mirostat dry_multiplier dry_sequence_breakers typical_p grammar "
    "chat_template_kwargs reasoning_effort add_generation_prompt continue_final_message stop_token_ids min_tokens "
    "allowed_token_ids ignore_eos encoding_format dimensions embd_normalize pooling system stop_sequences thinking "
    "options think format raw keep_alive instructions text reasoning n_probs response_fields return_tokens "
    "xtc_probability "
    "tokens content add_special with_pieces return_token_ids timings_per_token samplers lora user metadata "
    "max_output_tokens top_n_sigma xtc_threshold dynatemp_range dynatemp_exponent repetition_penalty dry_base "
    "dry_allowed_length dry_penalty_last_n mirostat_tau mirostat_eta repeat_last_n min_keep guided_json guided_regex "
    "guided_choice structured_outputs json_schema bad_words prompt_logprobs truncate_prompt_tokens skip_special_tokens "
    "include_stop_str_in_output use_beam_search length_penalty thinking_budget_tokens t_max_predict_ms n_discard "
    "logits_processors cache_prompt parallel_tool_calls store priority cache_salt query documents add_special_tokens "
    "parse_special return_token_strs reasoning_format return_progress background previous_response_id truncation "
    "conversation output_config functions function_call id_slot template name verbose"
).split()
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400,
    -(10**400), "", "a", "auto", "none", "required", "x" * 3000, "\u0000", "<|im_end|>", "\U0001f600", [], [[]], [None],
    [1, 2, 3], ["a", "b"],
    [[1], [2]],
    [True], [1.5], [-1], [10**9], {}, {"a": 1}, {"type": "text"}, {"type": "json_object"}, {"1": 5}, {"x": "y"},
    [{"role": "user", "content": "a"}], [{"role": "assistant", "content": "a"}], [{"role": "tool"}], [{}],
    {"include_usage": 1},
    [{"type": "text", "text": "a"}], [{"type": "function", "function": {"name": "f"}}], {"type": "enabled"},
    [[5, False]],
)  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.random()
    if depth < 4 and kind < 0.15:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 4 and kind < 0.3:
        return {rng.choice((*FIELDS, "role", "type", "name", "function")): value(rng, depth + 1) for _ in range(3)}
    return copy.deepcopy(rng.choice(VALUES))


def mutate(rng: random.Random, body: Any) -> Any:
    """The body with some members changed, added or taken away, at any depth."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        place = body
        while isinstance(place, dict | list) and place and rng.random() < 0.4:
            inner = place[rng.choice(list(place))] if isinstance(place, dict) else rng.choice(place)
            if not isinstance(inner, dict | list):
                break
            place = inner
        if isinstance(place, dict):
            name = rng.choice(list(place) or FIELDS) if rng.random() < 0.4 else rng.choice(FIELDS)
            if rng.random() < 0.2:
                place.pop(name, None)
            else:
                place[name] = value(rng)
        elif isinstance(place, list):
            place.insert(rng.randrange(len(place) + 1), value(rng))
    return body


def request(rng: random.Random) -> tuple[str, str, bytes, list[tuple[bytes, bytes]]]:
    """Method, path, body and headers."""
    path = rng.choice([*POST, *GET, "/v1/nothing", "/%00", "/v1/models/x/../y"])
    method = "POST" if path in POST else "GET"
    if rng.random() < 0.02:
        method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))
    raw = json.dumps(mutate(rng, rng.choice(list(BODIES.values())))).encode()
    if rng.random() < 0.05:
        at = rng.randrange(len(raw) + 1)
        raw = rng.choice((raw[:at], raw[:at] + rng.randbytes(3) + raw[at:], raw[:at] + b"\\ud800" + raw[at:], b""))
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if rng.random() < 0.03:
        headers.append((rng.choice((b"origin", b"host", b"x-request-id", b"content-length")), rng.randbytes(5)))
    return method, path, raw, headers


async def call(
    app: Any, method: str, path: str, raw: bytes, headers: list[tuple[bytes, bytes]], leave: bool = False
) -> tuple[int, bytes]:
    """The status and the body of the answer. leave: the client goes as soon as anything arrives."""
    sent, gone = False, asyncio.Event()
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))
        if leave:
            gone.set()

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
             "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "headers": headers,
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
    await app(scope, receive, send)
    return status, b"".join(parts)


GOOD = json.dumps(BODIES["messages"]).encode()
HEADERS = [(b"host", b"localhost")]


def complaint(status: int, body: bytes) -> str | None:
    """What is wrong with an answer to a wrong request."""
    if status in (500, 502, 504) or (status == 0 and body):
        return f"status {status}: {body[:300]!r}"
    if status >= 400:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return f"{status} without an error object: {body[:300]!r}"
        if isinstance(error, dict) and not isinstance(error.get("message"), str):
            return f"{status} without a message: {body[:300]!r}"
    if b'"server_error"' in body:
        return f"a server error in a stream: {body[-300:]!r}"
    return None


async def run(path: Path, n: int, seed: int, at_once: int = 8) -> tuple[Counter[int], list[str]]:
    """Send n wrong requests, several at once, with well-formed ones among them; (statuses, complaints)."""
    rng = random.Random(seed)

    def open_model(entry: Entry, progress: Any) -> ServedLLM:
        return ServedLLM(entry.source, max_seqs=8)

    app, context = build(Settings(log_requests=False), [Entry("tiny", str(path))], open_model)
    await context.models.load(context.models.entries[0])
    _, reference = await call(app, "POST", "/v1/chat/completions", GOOD, HEADERS)
    expected = json.loads(reference)["choices"]
    statuses: Counter[int] = Counter()
    complaints: list[str] = []

    async def one(request: tuple[str, str, bytes, list[tuple[bytes, bytes]]], leave: bool) -> None:
        status, body = await asyncio.wait_for(call(app, *request, leave=leave), 60)
        statuses[status] += 1
        if not leave and (wrong := complaint(status, body)) is not None and request[0] != "HEAD":
            complaints.append(f"{request[:3]}: {wrong}")

    for start in range(0, n, at_once):
        batch = [one(request(rng), rng.random() < 0.03) for _ in range(min(at_once, n - start))]
        good = call(app, "POST", "/v1/chat/completions", GOOD, HEADERS)
        *_, (status, body) = await asyncio.gather(*batch, good)
        if status != 200 or json.loads(body)["choices"] != expected:
            complaints.append(f"a well-formed request was disturbed: {status} {body[:300]!r}")
    stats = context.models.entries[0].served.llm.stats  # type: ignore[union-attr]
    if context.models.entries[0].served.active or stats.requests:  # type: ignore[union-attr]
        complaints.append(f"requests are left: {stats}")
    await context.models.close()
    return statuses, complaints


def main() -> int:
    """The long run."""
    n, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    import pytest

    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        install(monkeypatch, FakeBackend(saying("hello there")))
        begin = time.monotonic()
        statuses, complaints = asyncio.run(run(write_tiny(Path(folder) / "tiny.gguf"), n, seed))
    print(f"{n} requests in {time.monotonic() - begin:.0f} s: {dict(sorted(statuses.items()))}")
    for text in complaints[:20]:
        print(text)
    print(f"{len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

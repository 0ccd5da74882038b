"""The starter model behind the server: the same text whatever runs beside a request, in streams, on the page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Running, Start

COLORS = "1. Red\n2. Blue\n3. Green"


@pytest.fixture
def real(start: Start, smollm2_path: Path) -> Running:
    """SmolLM2 with a short context."""
    return start(path=smollm2_path, real=True, name="smollm2:135m", options={"n_ctx": 512})


def test_g_19_g_20_a_seed_gives_the_same_text_under_load(real: Running) -> None:
    def text(i: int, **more: Any) -> tuple[str, str]:
        answer = real.chat(f"Tell me about the number {i}.", seed=i, max_tokens=24, **more).json()
        return answer["choices"][0]["message"]["content"], answer["system_fingerprint"]

    alone = [text(i) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(text, range(6)))
    assert together == alone
    assert len({fingerprint for _, fingerprint in alone}) == 1
    events = real.chat_events("Tell me about the number 3.", seed=3, max_tokens=24)  # STR-06
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == alone[3][0]


def test_openai_client(real: Running) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="smollm2:135m", messages=[{"role": "user", "content": "Name three colors."}], temperature=0
        )
        vector = client.embeddings.create(model="smollm2:135m", input="a text").data[0].embedding
    assert answer.choices[0].message.content == COLORS
    assert len(vector) == 576


def test_a_second_turn_finds_the_first_in_the_cache(real: Running) -> None:
    talk = [{"role": "user", "content": "Name three colors. " * 12}]
    body = {"messages": talk, "temperature": 0, "max_tokens": 16}
    first = real.post("/v1/chat/completions", body).json()
    talk += [first["choices"][0]["message"], {"role": "user", "content": "And three more."}]
    second = real.post("/v1/chat/completions", body).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 32
    assert second["timings"]["cache_n"] > 32

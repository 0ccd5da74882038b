"""from_pretrained: a repository and the name, or a pattern of the name, of a file in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving.tiny import install, saying, write_tiny
from unit.hub.conftest import endpoint, hf, home, index, world  # noqa: F401
from unit.hub.fake_hub import HubWorld

from edgellm import DownloadError, ModelNotFound
from edgellm.backends.fake import FakeBackend
from edgellm.compat import Llama
from edgellm.compat.pretrained import model_name


def test_names_and_patterns(hf: HubWorld) -> None:  # noqa: F811
    assert model_name("u/r-GGUF", None) == "hf:u/r-GGUF"
    assert model_name("u/r-GGUF", "r-Q8_0.gguf") == "hf:u/r-GGUF/r-Q8_0.gguf"
    asked = len(hf.hub.requests)
    assert asked == 0
    for pattern in ("*Q8_0.gguf", "r-Q8*", "r-Q[8]_0.gguf", "*Q8_?.gguf"):
        assert model_name("u/r-GGUF", pattern) == "hf:u/r-GGUF/r-Q8_0.gguf"
    with pytest.raises(ModelNotFound, match=r"3 models match '\*\.gguf' in u/r-GGUF; there are: r-Q2_K\.gguf, "):
        model_name("u/r-GGUF", "*.gguf")
    with pytest.raises(ModelNotFound, match=r"no model matches '\*Q5\*' in u/r-GGUF; there are: r-Q2_K\.gguf, "):
        model_name("u/r-GGUF", "*Q5*")


def test_a_model_is_fetched_once_and_opened(
    hf: HubWorld,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = write_tiny(tmp_path / "tiny.gguf").read_bytes()
    hf.hub.add("u/tiny-GGUF", {"tiny-Q8_0.gguf": data, "tiny-Q4_0.gguf": data + b"x"})
    install(monkeypatch, FakeBackend(saying("hi")))

    def answer(**options: Any) -> str:
        llama = Llama.from_pretrained(repo_id="u/tiny-GGUF", filename="*Q8_0.gguf", verbose=False, **options)
        out: str = llama("a")["choices"][0]["text"]
        llama.close()
        return out

    assert answer(n_ctx=64) == "hi"
    asked = len(hf.hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert answer(local_dir_use_symlinks=False, additional_files=[]) == "hi"
    assert len(hf.hub.requests) == asked
    llama = Llama.from_pretrained("u/tiny-GGUF", "*Q8_0.gguf", additional_files=["part-2"])
    assert [r.getMessage() for r in caplog.records if r.name.startswith("edgellm.compat")] == [
        "additional_files=['part-2'] changes nothing: all parts of a split model are fetched by themselves"
    ]
    llama.close()


def test_no_network_where_it_is_forbidden(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        Llama.from_pretrained("u/r-GGUF", "*Q8_0.gguf")
    assert hf.hub.requests == []

"""An endpoint that cuts, stalls, lies, refuses and redirects: what arrives is right, or nothing does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from unit.hub.fake_hub import Bars, Hub, HubWorld, finished, sha

from edgellm import hub
from edgellm.core.errors import DownloadError, ModelNotFound
from edgellm.hub import web


def test_cut_connections_are_resumed(hf: HubWorld) -> None:
    hf.hub.cut_after = [1_200_000, 400_000, 0, 500_000]
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    ranges = [r.range for r in hf.hub.downloads()]
    assert ranges == [None, "bytes=1200000-", "bytes=1600000-", "bytes=1600000-", "bytes=2100000-"]


def test_a_server_that_hangs_up_without_an_answer(hf: HubWorld) -> None:
    hf.hub.cut_after, hf.hub.cut_header = [], True
    with pytest.raises(DownloadError, match=r"could not be fetched: .*Run the command again"):
        hub.pull("u/r-GGUF")
    hf.hub.cut_after, hf.hub.cut_header = [500_000], False
    with pytest.raises(KeyboardInterrupt):
        hub.pull("u/r-GGUF", progress=Bars(stop_at=200_000))
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_a_connection_that_is_always_cut_is_given_up(hf: HubWorld) -> None:
    hf.hub.cut_after = [1000] * 99
    with pytest.raises(DownloadError, match=r"the connection ends after 5000 of 3000000 bytes \(5 attempts\)"):
        hub.pull("u/r-GGUF")
    assert hf.part.read_bytes() == hf.model[:5000]
    assert finished(hf) == []
    hf.hub.cut_after = []
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert hf.hub.downloads()[-1].range == "bytes=5000-"


def test_a_server_that_stalls(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 2.0)
    hf.hub.stalls = 2
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.range for r in hf.hub.downloads()] == [None, "bytes=1500000-", "bytes=2250000-"]


def test_ranges_that_are_ignored(hf: HubWorld) -> None:
    hf.part.parent.mkdir(parents=True)
    hf.part.write_bytes(hf.model[:700_000])
    hf.hub.ranges = False
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.range for r in hf.hub.downloads()] == ["bytes=700000-"]


def test_another_range_than_asked_for(hf: HubWorld) -> None:
    hf.part.parent.mkdir(parents=True)
    hf.part.write_bytes(hf.model[:700_000])
    hf.hub.shift = 1
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.range for r in hf.hub.downloads()] == ["bytes=700000-", None]


def test_416_starts_again(hf: HubWorld) -> None:
    hf.part.parent.mkdir(parents=True)
    hf.part.write_bytes(hf.model[:700_000])
    hf.hub.statuses = [416]
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.range for r in hf.hub.downloads()] == ["bytes=700000-", None]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_older_bytes_that_are_wrong(hf: HubWorld, extra: int) -> None:
    hf.part.parent.mkdir(parents=True)
    hf.part.write_bytes(bytes(len(hf.model) + extra))
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_wrong_bytes_never_become_a_model(hf: HubWorld) -> None:
    bad = bytearray(hf.model)
    bad[1234] ^= 1
    hf.hub.stored[sha(hf.model)] = bytes(bad)
    with pytest.raises(DownloadError, match=r"sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; .* discarded"):
        hub.pull("u/r-GGUF")
    assert (finished(hf), hf.part.stat().st_size, len(hf.hub.downloads())) == ([], 0, 1)
    hf.hub.stored[sha(hf.model)] = hf.model + b"more"
    with pytest.raises(DownloadError, match="sends more than the 3000000 bytes expected"):
        hub.pull("u/r-GGUF")
    assert finished(hf) == []
    hf.hub.stored.clear()
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_another_etag_stops_before_the_download(hf: HubWorld) -> None:
    hf.hub.etag = "0" * 64
    with pytest.raises(DownloadError, match=rf"has another file there: sha256 0{{64}}, expected {sha(hf.model)}"):
        hub.pull("u/r-GGUF")
    assert not hf.part.exists() or hf.part.stat().st_size == 0
    hf.hub.etag = "something-else"  # no hash: the bytes decide
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_an_endpoint_that_serves_files_itself(hf: HubWorld) -> None:
    hf.hub.cdn = "direct"
    hf.hub.cut_after = [1_500_000]
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_passing_refusals_are_retried(hf: HubWorld, status: int) -> None:
    hf.hub.statuses, hf.hub.api_statuses = [status, status], [status, status]
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_a_server_that_asks_to_wait(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(web.time, "sleep", slept.append)
    hf.hub.statuses, hf.hub.api_statuses, hf.hub.retry_after = [429], [429, 429], "7"
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert slept.count(7.0) == 3
    hf.hub.api_statuses, hf.hub.retry_after = [429] * 9, "99999"
    with pytest.raises(DownloadError, match=r"HTTP 429 .* Setting HF_TOKEN raises the limit"):
        hub.pull("u/r-GGUF:Q2_K")
    assert max(slept) == web.LONGEST_WAIT


def test_an_expired_address_is_asked_for_again(
    hf: HubWorld, second_endpoint: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_endpoint.stored[sha(hf.model)] = hf.model
    second_endpoint.cut_after, second_endpoint.statuses = [1_000_000], [200, 403]
    hf.hub.cdn = second_endpoint.url
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.range for r in second_endpoint.requests] == [None, "bytes=1000000-", "bytes=1000000-"]


@pytest.mark.parametrize("status", [403, 404, 410])
def test_lasting_refusals_are_not_retried(hf: HubWorld, status: int) -> None:
    hf.hub.statuses = [status] * 9
    with pytest.raises(DownloadError, match=rf"u/r-GGUF could not be fetched: .*: HTTP {status}"):
        hub.pull("u/r-GGUF")
    assert len(hf.hub.downloads()) == 1


def test_redirects_that_lead_nowhere(hf: HubWorld) -> None:
    hf.hub.moved = hf.hub.url
    with pytest.raises(DownloadError, match="HTTP 302"):
        hub.pull("u/r-GGUF")
    hf.hub.moved = "file:///etc"
    with pytest.raises(DownloadError, match="is not allowed"):
        hub.pull("u/r-GGUF")
    hf.hub.moved, hf.hub.cdn = "", "ftp://127.0.0.1"
    with pytest.raises(DownloadError, match="leads to something other than HTTP"):
        hub.pull("u/r-GGUF")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>log in to the Wi-Fi</html>", "did not answer with JSON; check HF_ENDPOINT"),
        (b"[]", "did not answer like the Hugging Face API"),
        (b'{"id": "u/r"}', "did not answer like the Hugging Face API .*the commit is ''"),
        (b'{"id": "u/r", "sha": "%s", "siblings": 3}' % (b"c" * 40), "did not answer like the Hugging Face API"),
        (
            b'{"id": "u/r", "sha": "%s", "siblings": [{"rfilename": "m.gguf", "size": -1}]}' % (b"c" * 40),
            "the size of m.gguf is -1",
        ),
        (
            b'{"id": "u/r", "sha": "%s", "siblings": [{"rfilename": "m.gguf", "size": 9}]}' % (b"c" * 40),
            "states no checksum for m.gguf",
        ),
    ],
)
def test_answers_that_are_none(hf: HubWorld, body: bytes, words: str) -> None:
    hf.hub.api_body = body
    with pytest.raises(DownloadError, match=words):
        hub.pull("u/r-GGUF")


def test_paths_that_would_leave_the_cache_are_not_seen(hf: HubWorld) -> None:
    evil = ["../../../evil-Q4_K_M.gguf", "/tmp/evil-Q4_K_M.gguf", "a\\..\\evil-Q4_K_M.gguf", ".hidden/x-Q4_K_M.gguf"]
    hf.hub.add("u/evil", dict.fromkeys(evil, b"evil"))
    with pytest.raises(ModelNotFound, match=r"has no \.gguf file"):
        hub.pull("u/evil")
    assert finished(hf) == []


def test_no_network_at_all(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match=r"could not be fetched: .*refused.*edgellm list shows"):
        hub.pull("u/r-GGUF")


def test_offline(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (hub.resolve, hub.pull):
        with pytest.raises(DownloadError) as caught:
            call("u/r-GGUF", offline=True)
        assert "u/r-GGUF is not on this machine, and fetching it was forbidden (--offline or" in str(caught.value)
        assert str(hf.folder) in str(caught.value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="fetching it was forbidden"):
        hub.resolve("hf:u/r-GGUF")
    assert hf.hub.requests == []


def test_threads_fetch_once(hf: HubWorld) -> None:
    hf.hub.gate = threading.Event()
    results: list[Path] = []
    bars = [Bars() for _ in range(4)]
    threads = [
        threading.Thread(target=lambda b: results.append(hub.pull("u/r-GGUF", progress=b).path), args=(b,))
        for b in bars
    ]
    for t in threads:
        t.start()
    deadline = time.monotonic() + 60
    while sum(any(label.startswith("waiting") for label in b.labels()) for b in bars) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    hf.hub.gate.set()
    for t in threads:
        t.join(60)
    assert results == [hf.path] * 4
    assert hf.path.read_bytes() == hf.model
    assert len(hf.hub.downloads()) == 1
    labels = {label for b in bars for label in b.labels() if label.startswith("waiting")}
    assert labels == {"waiting for another process that fetches from u/r-GGUF"}

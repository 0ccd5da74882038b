"""Models from a Hugging Face endpoint: what is meant, what comes, what is said, and what is on the disk."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from unit.hub.fake_hub import Bars, Hub, HubWorld, finished, noise, sha
from unit.hub.fake_index import World

from edgellm import hub
from edgellm.core.errors import DownloadError, ModelNotFound

TOKEN = "token-" + "s3cret" * 4


# -- what is meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "file"),
    [
        ("u/r-GGUF", "r-Q4_K_M.gguf"),
        ("u/r-GGUF:Q2_K", "r-Q2_K.gguf"),
        ("hf:u/r-GGUF:q8_0", "r-Q8_0.gguf"),
        ("hf.co/u/r-GGUF", "r-Q4_K_M.gguf"),
        ("https://huggingface.co/u/r-GGUF/blob/main/r-Q2_K.gguf", "r-Q2_K.gguf"),
        ("hf:u/r-GGUF@main:r-Q8_0.gguf", "r-Q8_0.gguf"),
        ("{endpoint}/u/r-GGUF/resolve/main/r-Q8_0.gguf?download=true", "r-Q8_0.gguf"),
    ],
)
def test_spellings_are_fetched(hf: HubWorld, spelling: str, file: str) -> None:
    found = hub.resolve(spelling.format(endpoint=hf.hub.url))
    assert found.path == hf.folder / file
    assert found.path.read_bytes() == hf.hub.repos["u/r-GGUF"].files[file]
    quant = file.removeprefix("r-").removesuffix(".gguf")
    assert (found.name, found.entry, found.base) == (f"u/r-GGUF:{quant}", None, False)
    assert (found.license, found.origin, found.page) == ("apache-2.0", "edgellm", f"{hf.hub.url}/u/r-GGUF")
    assert finished(hf) == [f"hf/u/r-GGUF/{file}"]
    assert not (hf.folder / ".download").exists()


def test_what_is_here_is_found_without_the_network(hf: HubWorld) -> None:
    path = hub.resolve("u/r-GGUF").path
    before = len(hf.hub.requests)
    for spelling in ("u/r-GGUF", "hf.co/U/R-gguf:q4_k_m", "u/r-GGUF:r-Q4_K_M", "hf:u/r-GGUF/r-Q4_K_M.gguf"):
        assert hub.resolve(spelling, offline=True).path == path
    assert hub.list_local()[0].name == "u/r-GGUF:Q4_K_M"
    assert hub.pull("u/r-GGUF", offline=True).path == path
    assert len(hf.hub.requests) == before
    with pytest.raises(DownloadError) as caught:
        hub.resolve("u/r-GGUF:Q8_0", offline=True)
    assert "u/r-GGUF:Q8_0 is not on this machine" in str(caught.value)
    assert "Of that repository there are: u/r-GGUF:Q4_K_M." in str(caught.value)


def test_the_default_is_never_another_quantisation_silently(hf: HubWorld, caplog: pytest.LogCaptureFixture) -> None:
    hub.pull("u/r-GGUF:Q8_0")
    assert hub.resolve("u/r-GGUF").path.name == "r-Q4_K_M.gguf", "not the one that happens to be here"
    assert caplog.records == []
    hf.hub.add("u/no-GGUF", {"n-Q8_0.gguf": noise(6, 1000), "n-BF16.gguf": noise(7, 1000)})
    before = len(hf.hub.downloads())
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("u/no-GGUF")
    assert str(caught.value).endswith(
        "/u/no-GGUF has no Q4_K_M, which is meant where nothing is named. There are: u/no-GGUF:BF16, u/no-GGUF:Q8_0. "
        "Name one of them."
    )
    assert len(hf.hub.downloads()) == before
    assert hub.resolve("u/no-GGUF:Q8_0").path.name == "n-Q8_0.gguf"
    assert caplog.records == []


def test_the_only_model_of_a_repository_is_the_default_and_that_is_said(
    hf: HubWorld, caplog: pytest.LogCaptureFixture
) -> None:
    hf.hub.add("u/one", {"one-Q8_0.gguf": noise(8, 1000), "mmproj-one-F16.gguf": noise(9, 1000)})
    with caplog.at_level(logging.WARNING, "edgellm"):
        assert hub.resolve("u/one").name == "u/one:Q8_0"
    assert caplog.messages == ["u/one has no Q4_K_M: the only model, Q8_0, is used"]
    caplog.clear()
    before = len(hf.hub.requests)
    assert hub.resolve("u/one", offline=True).path.name == "one-Q8_0.gguf"
    assert (caplog.records, len(hf.hub.requests)) == ([], before), "the choice is remembered"


def test_capitals_do_not_matter(hf: HubWorld) -> None:
    hf.hub.add("Org/No-GGUF", {"n-Q8_0.gguf": noise(6, 1000)})
    found = hub.resolve("hf.co/org/no-gguf")
    assert (found.name, found.path.parent.name) == ("Org/No-GGUF:Q8_0", "No-GGUF")
    assert hub.resolve("ORG/no-gguf", offline=True).path == found.path
    assert hub.pull("org/NO-gguf").path == found.path
    assert len(hf.hub.downloads()) == 1


def test_choices_that_cannot_be_made(hf: HubWorld) -> None:
    hf.hub.add("u/two", {f"{m}-Q4_K_M.gguf": noise(1, 1000) for m in ("a", "b")})
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("u/two")
    assert "u/two means 2 models; name one of them: hf:u/two/a-Q4_K_M.gguf, hf:u/two/b-Q4_K_M.gguf" in str(caught.value)
    assert hub.resolve("hf:u/two/b-Q4_K_M.gguf").path.name == "b-Q4_K_M.gguf"
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("u/r-GGUF:Q5_K_M")
    assert "has no Q5_K_M. There are: u/r-GGUF:Q2_K, u/r-GGUF:Q4_K_M, u/r-GGUF:Q8_0." in str(caught.value)
    with pytest.raises(ModelNotFound, match=r"has no model file r-Q4_K_S\.gguf\. Did you mean r-Q4_K_M\.gguf"):
        hub.resolve("hf:u/r-GGUF/r-Q4_K_S.gguf")
    with pytest.raises(ModelNotFound, match=r"has no file other\.gguf\. There are: "):
        hub.resolve("u/r-GGUF:other.gguf")
    assert hf.hub.downloads() == hf.hub.downloads()[-1:], "nothing but b was downloaded"


def test_split_models_are_fetched_whole(hf: HubWorld) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    files = {n: noise(i, 200_000 + i) for i, n in enumerate(names)}
    hf.hub.add("u/big", files)
    bars = Bars()
    found = hub.pull("hf:u/big/Q4_K_M", progress=bars)
    folder = hf.cache / "models" / "hf" / "u" / "big"
    assert found.path == folder / names[0]
    assert {n: (folder / n).read_bytes() for n in names} == files
    total = sum(map(len, files.values()))
    assert {t for _, t, _ in bars.calls} == {total}
    done = [d for d, _, label in bars.calls if label.startswith("downloading")]
    assert done == sorted(done)
    assert done[-1] == total
    listed = hub.list_local()
    assert [(m.name, m.size, m.license) for m in listed] == [("u/big:Q4_K_M", total, "apache-2.0")]
    (folder / names[1]).unlink()
    assert hub.list_local() == []
    bars = Bars()
    assert hub.resolve("u/big", progress=bars).path == folder / names[0]
    assert bars.labels() == ["verifying u/big:Q4_K_M", "downloading u/big:Q4_K_M (licence: apache-2.0)"]
    assert hub.remove("u/big") == total
    assert not folder.exists()
    del hf.hub.repos["u/big"].files[names[2]]
    with pytest.raises(ModelNotFound, match=r"lacks 1 of the 3 files of this model: Q4_K_M/m-Q4_K_M-00003-of-00003"):
        hub.pull("u/big")


def test_revisions(hf: HubWorld) -> None:
    hf.hub.repos["u/r-GGUF"].revisions["refs/pr/1"] = "d" * 40
    found = hub.pull("u/r-GGUF@refs/pr/1:Q2_K")
    assert found.path == hf.folder.parent / "r-GGUF@refs%2Fpr%2F1" / "r-Q2_K.gguf"
    assert found.name == "u/r-GGUF@refs/pr/1:Q2_K"
    assert hub.resolve(found.name, offline=True).path == found.path
    with pytest.raises(DownloadError, match="not on this machine"):
        hub.resolve("u/r-GGUF:Q2_K", offline=True)
    with pytest.raises(ModelNotFound, match=r"has no revision 'v9'; without @REVISION, main is used"):
        hub.resolve("u/r-GGUF@v9")
    assert hub.remove(found.name) == 100_000
    assert not found.path.parent.exists()


def test_small_files_are_verified_too(hf: HubWorld) -> None:
    """Below some megabytes a file may be stored in git itself: then the id of its blob is what is known."""
    data = noise(9, 5000)
    hf.hub.add("u/small", {"s-Q4_K_M.gguf": data}, small={"s-Q4_K_M.gguf"})
    assert hub.pull("u/small").path.read_bytes() == data
    hub.remove("u/small")
    hf.hub.stored[sha(data)] = data[:-1] + b"?"
    with pytest.raises(DownloadError, match=r"git is [0-9a-f]{40}, expected [0-9a-f]{40}; the bytes were discarded"):
        hub.pull("u/small")
    assert finished(hf) == []


@pytest.mark.parametrize(
    ("card", "tags", "expected"),
    [
        ({"license": "gemma"}, [], "gemma"),
        ({"license": "other", "license_name": "llama3.2"}, [], "llama3.2"),
        ({}, ["license:mit"], "mit"),
        ({"license": "a\x1b[31mb"}, [], "a[31mb"),
        ({}, [], ""),
    ],
)
def test_the_licence_is_shown(hf: HubWorld, card: dict[str, str], tags: list[str], expected: str) -> None:
    hf.hub.repos["u/r-GGUF"].card, hf.hub.repos["u/r-GGUF"].tags = card, tags
    bars = Bars()
    assert hub.pull("u/r-GGUF:Q2_K", progress=bars).license == expected
    shown = f" (licence: {expected})" if expected else ""
    assert bars.labels()[-1] == f"downloading u/r-GGUF:Q2_K{shown}"
    assert hub.list_local()[0].license == expected
    assert hub.resolve("u/r-GGUF:Q2_K").license == expected


# -- repositories that are not what was hoped for --------------------------------------------------------------


def test_no_such_repository(hf: HubWorld) -> None:
    hf.hub.search = ["u/r-GGUF", "v/r-GGUF", "x/other"]
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("u/r-GUF")
    text = str(caught.value)
    assert f"{hf.hub.url} has no repository u/r-GUF. Did you mean u/r-GGUF" in text
    assert "If it is private, set HF_TOKEN." in text
    assert "(u/r-GUF is no file or folder here either.)" in text
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelNotFound) as caught:
        hub.pull("hf:nobody/nothing")
    assert "either" not in str(caught.value)


def test_a_repository_without_gguf(hf: HubWorld) -> None:
    hf.hub.add("Qwen/Qwen3-0.6B", {"mmproj-x.gguf": b"x"})
    hf.hub.search = ["Qwen/Qwen3-0.6B-GGUF", "unsloth/Qwen3-0.6B-GGUF"]
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("Qwen/Qwen3-0.6B")
    assert "has no .gguf file that holds a language model." in str(caught.value)
    assert "Repositories that do: Qwen/Qwen3-0.6B-GGUF, unsloth/Qwen3-0.6B-GGUF." in str(caught.value)


def test_gated_repositories(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.hub.repos["u/r-GGUF"].gated, hf.hub.token = "manual", TOKEN
    with pytest.raises(DownloadError) as caught:
        hub.pull("u/r-GGUF")
    text = str(caught.value)
    assert "u/r-GGUF is gated: its owner wants its terms to be accepted first. HF_TOKEN is not set" in text
    assert f"Open {hf.hub.url}/u/r-GGUF in a browser" in text
    assert f"{hf.hub.url}/settings/tokens and set HF_TOKEN" in text
    hf.hub.accepted = False
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(DownloadError, match="The token in use has not done that"):
        hub.pull("u/r-GGUF")
    assert finished(hf) == []
    hf.hub.accepted = True
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_private_repositories(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.hub.repos["u/r-GGUF"].private, hf.hub.token = True, TOKEN
    with pytest.raises(ModelNotFound, match="If it is private, set HF_TOKEN"):
        hub.pull("u/r-GGUF")
    monkeypatch.setenv("HF_TOKEN", "wrong-one")
    with pytest.raises(DownloadError, match=r"refuses the token \(HTTP 401\)\. Make a new one at"):
        hub.pull("u/r-GGUF")
    monkeypatch.setenv("HF_TOKEN", "two words")
    with pytest.raises(DownloadError, match="contains blanks"):
        hub.pull("u/r-GGUF")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_a_stored_token_counts(hf: HubWorld, tmp_path: Path) -> None:
    hf.hub.repos["u/r-GGUF"].private, hf.hub.token = True, TOKEN
    (tmp_path / "no-token").write_text(TOKEN + "\n")
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model


def test_the_token_stays_with_the_endpoint(
    hf: HubWorld, second_endpoint: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf.hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    second_endpoint.stored[sha(hf.model)] = hf.model
    hf.hub.cdn = second_endpoint.url
    with caplog.at_level(logging.DEBUG):
        assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    assert [r.auth for r in hf.hub.requests] == [f"Bearer {TOKEN}"] * 2
    assert [r.auth for r in second_endpoint.requests] == [None]
    hub.remove("u/r-GGUF")
    hf.hub.cdn = ""  # the same host: there it may stay
    hub.pull("u/r-GGUF")
    assert hf.hub.downloads()[-1].auth == f"Bearer {TOKEN}"
    hf.hub.moved = second_endpoint.url
    second_endpoint.repos = hf.hub.repos
    hub.remove("u/r-GGUF")
    second_endpoint.requests.clear()
    hub.pull("u/r-GGUF")
    assert {r.auth for r in second_endpoint.requests} == {None}
    hf.hub.moved, hf.hub.statuses = "", [404]
    hub.remove("u/r-GGUF")
    with pytest.raises(DownloadError) as caught:
        hub.pull("u/r-GGUF")
    for text in (str(caught.value), repr(caught.value.__cause__), *caplog.messages):
        assert TOKEN not in text
        assert "signature" not in text
    for file in hf.cache.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()


# -- what is on the disk ---------------------------------------------------------------------------------------


def test_pull_verifies_and_replaces_what_is_damaged(hf: HubWorld) -> None:
    hub.pull("u/r-GGUF")
    before = len(hf.hub.downloads())
    bars = Bars()
    assert hub.pull("u/r-GGUF", progress=bars).path == hf.path
    assert bars.labels() == ["verifying u/r-GGUF:Q4_K_M"]
    assert len(hf.hub.downloads()) == before
    hf.path.write_bytes(bytes(len(hf.model)))  # right size, wrong bytes
    with pytest.raises(DownloadError, match=r"u/r-GGUF:Q4_K_M is damaged: .*pull it with the network"):
        hub.pull("u/r-GGUF", offline=True)
    hub.pull("u/r-GGUF")
    assert hf.path.read_bytes() == hf.model
    hf.path.write_bytes(hf.model[:1000])
    assert hub.list_local() == []
    assert hub.resolve("u/r-GGUF").path.read_bytes() == hf.model


def test_pull_updates(hf: HubWorld) -> None:
    hub.pull("u/r-GGUF")
    hf.hub.repos["u/r-GGUF"].files["r-Q4_K_M.gguf"] = new = noise(11, 2_000_000)
    assert hub.resolve("u/r-GGUF").path.read_bytes() == hf.model, "resolve takes what is here"
    assert hub.pull("u/r-GGUF").path.read_bytes() == new
    assert hub.list_local()[0].size == 2_000_000


def test_remains_of_another_version_are_not_continued(hf: HubWorld) -> None:
    with pytest.raises(KeyboardInterrupt):
        hub.pull("u/r-GGUF", progress=Bars(stop_at=1_000_000))
    assert hf.part.stat().st_size >= 1_000_000
    hf.hub.repos["u/r-GGUF"].files["r-Q4_K_M.gguf"] = new = noise(11, 2_000_000)
    assert hub.pull("u/r-GGUF").path.read_bytes() == new
    assert hf.hub.downloads()[-1].range is None
    assert not hf.part.parent.exists(), "the remains are removed with the download that replaces them"


def test_disk_space_is_checked_first(hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 36_000_000))
    with pytest.raises(DownloadError, match=r"needs 37 MB more in .*, but 36 MB are free\. Free space there, or set"):
        hub.pull("u/r-GGUF")
    assert hf.hub.downloads() == []
    hf.part.parent.mkdir(parents=True, exist_ok=True)
    hf.part.write_bytes(hf.model[:1_000_000])
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model, "what is there already counts"


def test_a_cache_that_cannot_be_written(hf: HubWorld) -> None:
    hf.cache.write_text("a file, not a folder")
    with pytest.raises(DownloadError, match=r"cannot be written .*set EDGELLM_CACHE"):
        hub.pull("u/r-GGUF")


def test_remove_takes_the_remains_too(hf: HubWorld) -> None:
    hub.pull("u/r-GGUF:Q2_K")
    with pytest.raises(KeyboardInterrupt):
        hub.pull("u/r-GGUF", progress=Bars(stop_at=1_000_000))
    size = hf.part.stat().st_size
    assert [m.name for m in hub.list_local()] == ["u/r-GGUF:Q2_K"]
    assert hub.remove("u/r-GGUF:Q4_K_M") == size
    assert not hf.part.parent.exists()
    assert hub.resolve("u/r-GGUF:Q2_K", offline=True).license == "apache-2.0"
    with pytest.raises(ModelNotFound, match=r"is not in the model cache .*; models there: u/r-GGUF:Q2_K"):
        hub.remove("u/r-GGUF:Q4_K_M")
    assert hub.remove("hf.co/u/r-GGUF:q2_k") == 100_000
    assert not (hf.cache / "models" / "hf" / "u").exists()


def test_notes_that_cannot_be_read_mean_that_nothing_is_known(hf: HubWorld) -> None:
    hub.pull("u/r-GGUF")
    for text in ("", "[]", "{", '{"schema": 2}', '{"schema": 1, "files": {"x": {}}}', "[" * 100_000):
        (hf.folder / ".edgellm.json").write_text(text)
        found = hub.resolve("u/r-GGUF", offline=True)
        assert (found.path, found.license) == (hf.path, "")
    assert hub.pull("u/r-GGUF").license == "apache-2.0"


SLOW_IMPORTS = """
import sys
from edgellm import hub
hub.resolve(sys.argv[1])
hub.list_local()
print([m for m in ("huggingface_hub", "urllib.request", "http.client", "ssl") if m in sys.modules])
"""


def test_local_models_cost_no_network_libraries(hf: HubWorld) -> None:
    path = hub.pull("u/r-GGUF").path
    for spelling in (str(path), "u/r-GGUF"):
        command = [sys.executable, "-c", SLOW_IMPORTS, spelling]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_nothing_but_the_endpoint_is_asked(hf: HubWorld, world: World) -> None:
    hub.pull("u/r-GGUF")
    assert [r.path.partition("?")[0].split("/")[1] for r in hf.hub.requests] == ["api", "u", "cdn"]
    assert world.index.requests == []

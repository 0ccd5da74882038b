"""Models that other programs downloaded: found, listed with their owner, used where they lie, never changed."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from unit.hub.fake_hub import HubWorld, noise, sha
from unit.hub.fake_index import World

from edgellm import hub
from edgellm.core.errors import DownloadError, ModelError, ModelNotFound
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.writer import write
from edgellm.hub import places


def hf_cache(root: Path, repo: str, files: dict[str, bytes], commit: str = "c" * 40, *, links: bool = True) -> Path:
    """What huggingface_hub leaves behind; the snapshot."""
    folder = root / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for name, data in files.items():
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if links:
            (folder / "blobs" / sha(data)).write_bytes(data)
            path.symlink_to(os.path.relpath(folder / "blobs" / sha(data), path.parent))
        else:
            path.write_bytes(data)
    return snapshot


def ollama(root: Path, where: str, data: bytes, **more: object) -> Path:
    """What Ollama leaves behind for the manifest `where`; the blob."""
    blob = root / "blobs" / f"sha256-{sha(data)}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    manifest = root / "manifests" / where
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{sha(data)}", "size": len(data), **more},
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}", "size": 5},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}))
    return blob


def listed() -> list[tuple[str, str]]:
    return [(m.name, m.origin) for m in hub.list_local()]


def untouched(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.lstat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def cache(world: World, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default Hugging Face cache, on a machine that may not use the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return home / ".cache" / "huggingface" / "hub"


def test_the_hugging_face_cache(cache: Path) -> None:
    assert listed() == []
    snapshot = hf_cache(
        cache, "u/r-GGUF", {"r-Q4_K_M.gguf": noise(1, 1000), "mmproj-F16.gguf": b"x", "README.md": b"y"}
    )
    (cache / "models--u--r-GGUF" / "blobs" / f"{'e' * 64}.incomplete").write_bytes(b"part")
    (snapshot / "r-Q8_0.gguf").symlink_to("../../blobs/nowhere")
    (cache / "datasets--u--d").mkdir()
    (cache / "models--single").mkdir()
    before = untouched(cache)
    assert listed() == [("u/r-GGUF:Q4_K_M", "Hugging Face")]
    model = hub.list_local()[0]
    assert (model.path, model.size, model.sha256) == (snapshot / "r-Q4_K_M.gguf", 1000, sha(noise(1, 1000)))
    for spelling in ("u/r-GGUF", "hf.co/u/r-gguf:q4_k_m", "hf:u/r-GGUF/r-Q4_K_M.gguf", "hf-cache:u/r-GGUF:Q4_K_M"):
        found = hub.resolve(spelling)
        assert (found.path, found.origin, found.name) == (model.path, "Hugging Face", "u/r-GGUF:Q4_K_M")
    assert hub.pull("u/r-GGUF").path == model.path
    with pytest.raises(DownloadError, match="Of that repository there are: u/r-GGUF:Q4_K_M"):
        hub.resolve("u/r-GGUF:Q8_0")
    with pytest.raises(ModelError, match=r"belongs to Hugging Face .* was not deleted: .*`hf cache rm`"):
        hub.remove("u/r-GGUF:Q4_K_M")
    assert untouched(cache) == before


def test_snapshots_without_links_and_older_ones(cache: Path) -> None:
    hf_cache(cache, "u/r", {"r-Q4_K_M.gguf": b"old", "r-Q8_0.gguf": b"only old"}, "a" * 40, links=False)
    new = hf_cache(cache, "u/r", {"r-Q4_K_M.gguf": b"newer"}, "b" * 40, links=False)
    assert [(m.name, m.size) for m in hub.list_local()] == [("u/r:Q4_K_M", 5), ("u/r:Q8_0", 8)]
    assert hub.resolve("u/r").path == new / "r-Q4_K_M.gguf"


def test_split_models_in_the_cache_must_be_complete(cache: Path) -> None:
    names = [f"r-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    snapshot = hf_cache(cache, "u/r", {names[0]: b"one"})
    assert listed() == []
    hf_cache(cache, "u/r", {names[1]: b"two"})
    assert [(m.name, m.size, m.path) for m in hub.list_local()] == [("u/r:Q8_0", 6, snapshot / names[0])]


def test_the_cache_elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_cache(tmp_path / "a" / "hub", "u/a", {"a-Q4_K_M.gguf": b"a"})
    hf_cache(tmp_path / "b", "u/b", {"b-Q4_K_M.gguf": b"b"})
    monkeypatch.setenv("HF_HOME", str(tmp_path / "a"))
    assert listed() == [("u/a:Q4_K_M", "Hugging Face")]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "b"))
    assert listed() == [("u/b:Q4_K_M", "Hugging Face")]


def test_lm_studio(cache: Path, home: Path, tmp_path: Path) -> None:
    for root in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        folder = root / "pub" / f"m-{root.parent.name.strip('.')}-GGUF"
        folder.mkdir(parents=True)
        (folder / "m-Q4_K_M.gguf").write_bytes(b"model")
        (folder / "downloading_m-Q8_0.gguf.part").write_bytes(b"half")
    expected = [("pub/m-lmstudio-GGUF:Q4_K_M", "LM Studio"), ("pub/m-lm-studio-GGUF:Q4_K_M", "LM Studio")]
    assert listed() == expected
    assert hub.resolve("pub/m-lmstudio-GGUF").path.is_relative_to(home / ".lmstudio")
    assert hub.resolve("lmstudio:pub/m-lmstudio-GGUF:Q4_K_M").origin == "LM Studio"
    with pytest.raises(ModelError, match=r"Remove it with LM Studio"):
        hub.remove("pub/m-lmstudio-GGUF")
    (tmp_path / "big" / "pub" / "x").mkdir(parents=True)
    (tmp_path / "big" / "pub" / "x" / "x-Q8_0.gguf").write_bytes(b"x")
    (home / ".lmstudio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "big")}))
    assert listed() == [("pub/x:Q8_0", "LM Studio"), *expected]
    (home / ".lmstudio-home-pointer").write_text(str(tmp_path / "moved"))
    assert listed() == expected[1:]
    (home / ".lmstudio-home-pointer").unlink()
    for odd in ("[", "[]", '{"downloadsFolder": 3}', '{"downloadsFolder": ""}'):
        (home / ".lmstudio" / "settings.json").write_text(odd)
        assert listed() == expected


def test_llama_cpp(cache: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama"
    monkeypatch.setenv("LLAMA_CACHE", str(folder))
    folder.mkdir()
    for name in ("ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf", "by-hand_Q8_0.gguf"):
        (folder / name).write_bytes(b"model")
    (folder / "u_r-GGUF_r-Q4_K_M.gguf.downloadInProgress").write_bytes(b"half")
    (folder / "ggml-org_gemma-3-1b-it-GGUF_mmproj-model-f16.gguf").write_bytes(b"eyes")
    hf_cache(folder, "u/new", {"n-Q4_K_M.gguf": b"n"})
    assert listed() == [
        ("u/new:Q4_K_M", "llama.cpp"),
        ("by-hand_Q8_0", "llama.cpp"),
        ("ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "llama.cpp"),
    ]
    assert hub.resolve("ggml-org/gemma-3-1b-it-GGUF").path.parent == folder
    assert hub.resolve("hf:ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf").path.parent == folder
    assert hub.resolve("by-hand_Q8_0").path == folder / "by-hand_Q8_0.gguf"
    with pytest.raises(ModelError, match=r"belongs to llama\.cpp .* was not deleted"):
        hub.remove("by-hand_Q8_0")
    assert len(list(folder.iterdir())) == 5


def test_the_same_folder_is_listed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf_cache(cache, "u/r", {"r-Q4_K_M.gguf": b"r"})
    monkeypatch.setenv("LLAMA_CACHE", str(cache))
    assert listed() == [("u/r:Q4_K_M", "Hugging Face")]


def test_ollama(cache: Path, home: Path) -> None:
    root = home / ".ollama" / "models"
    library = ollama(root, "registry.ollama.ai/library/llama3.2/1b", b"llama")
    latest = ollama(root, "registry.ollama.ai/library/qwen3/latest", b"qwen")
    user = ollama(root, "registry.ollama.ai/mannix/mine/latest", b"mine")
    from_hf = ollama(root, "hf.co/u/r-GGUF/Q8_0", b"hugging")
    before = untouched(root)
    assert listed() == [
        ("hf.co/u/r-GGUF:Q8_0", "Ollama"),
        ("llama3.2:1b", "Ollama"),
        ("mannix/mine:latest", "Ollama"),
        ("qwen3:latest", "Ollama"),
    ]
    for spelling, blob in [
        ("llama3.2:1b", library),
        ("ollama:llama3.2:1b", library),
        ("OLLAMA:qwen3", latest),
        ("qwen3", latest),
        ("mannix/mine", user),
        ("hf.co/u/r-GGUF:Q8_0", from_hf),
        ("u/r-GGUF:q8_0", from_hf),
    ]:
        found = hub.resolve(spelling)
        assert (found.path, found.origin) == (blob, "Ollama")
        assert hub.pull(spelling).path == blob
    with pytest.raises(ModelError, match=r"llama3\.2:1b belongs to Ollama .*Remove it with `ollama rm`"):
        hub.remove("llama3.2:1b")
    with pytest.raises(ModelNotFound, match=r"Did you mean llama3\.2:1b\?"):
        hub.resolve("llama3.2:3b")
    assert untouched(root) == before
    library.write_bytes(b"llamb")
    with pytest.raises(DownloadError, match=r"llama3\.2:1b is damaged: .*; fetch it again with Ollama"):
        hub.pull("llama3.2:1b")


def test_ollama_elsewhere(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ollama(tmp_path / "service", "registry.ollama.ai/library/a/1b", b"a")
    ollama(tmp_path / "mine", "registry.ollama.ai/library/b/1b", b"b")
    monkeypatch.setattr(places.sys, "platform", "linux")
    monkeypatch.setattr(places, "OLLAMA_SERVICE", tmp_path / "service")
    assert listed() == [("a:1b", "Ollama")]
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "mine"))
    assert listed() == [("b:1b", "Ollama")]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"layers": 3}', '{"layers": [3]}', '{"layers": [{}]}', '{"layers": []}', "[" * 100_000),
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../x", "size": 1}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 3, "size": 1}]}',
    ],
)
def test_manifests_that_are_none(cache: Path, home: Path, text: str) -> None:
    root = home / ".ollama" / "models"
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "x" / "1b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(text)
    assert listed() == []


def test_blobs_that_are_missing_or_short(cache: Path, home: Path) -> None:
    root = home / ".ollama" / "models"
    ollama(root, "registry.ollama.ai/library/x/1b", b"short", size=6)
    ollama(root, "registry.ollama.ai/library/y/1b", b"gone").unlink()
    ollama(root, "registry.ollama.ai/library/z/1b", b"text", size="4")
    assert listed() == []


def test_names_that_are_taken(cache: Path, home: Path) -> None:
    """The catalogue's names mean the catalogue; another program's model of that name keeps a name of its own."""
    root = home / ".ollama" / "models"
    blob = ollama(root, "registry.ollama.ai/library/one/small", b"another")
    hf_cache(cache, "u/r", {"r-Q4_K_M.gguf": b"hf"})
    folder = home / ".lmstudio" / "models" / "u" / "r"
    folder.mkdir(parents=True)
    (folder / "r-Q4_K_M.gguf").write_bytes(b"lm")
    assert [m.name for m in hub.list_local()] == ["u/r:Q4_K_M", "lmstudio:u/r:Q4_K_M", "ollama:one:small"]
    for model in hub.list_local():
        assert hub.resolve(model.name).path == model.path
    assert hub.resolve("ollama:one:small").path == blob
    with pytest.raises(DownloadError, match="one:small is not on this machine"):
        hub.resolve("one:small")
    with pytest.raises(ModelError, match="belongs to Ollama"):
        hub.remove("ollama:one:small")
    assert blob.exists()


def test_folders_that_may_not_be_read(cache: Path, home: Path) -> None:
    root = home / ".ollama" / "models"
    ollama(root, "registry.ollama.ai/library/x/1b", b"x")
    (root / "manifests").chmod(0)
    try:
        assert listed() in ([], [("x:1b", "Ollama")])  # the second when the tests run as root
    finally:
        (root / "manifests").chmod(0o755)


def test_no_home_at_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert hub.list_local() == []


def test_a_model_of_another_program_is_opened_in_place(cache: Path, home: Path, tmp_path: Path) -> None:
    """An Ollama blob has no suffix, a cached file is a link: both open as they are."""
    data = write(tmp_path / "m.gguf", {"general.architecture": "llama"}).read_bytes()
    ollama(home / ".ollama" / "models", "registry.ollama.ai/library/m/1b", data)
    hf_cache(cache, "u/m", {"m-Q4_K_M.gguf": data})
    for name in ("m:1b", "u/m"):
        with GGUFFile(hub.resolve(name).path) as file:
            assert file.metadata["general.architecture"] == "llama"
    assert not (home / "models").exists()


# -- with the network: what is here is not downloaded again ----------------------------------------------------


def test_pull_uses_what_another_program_has(hf: HubWorld) -> None:
    files = {"r-Q4_K_M.gguf": hf.model}
    snapshot = hf_cache(hf.home / ".cache" / "huggingface" / "hub", "u/r-GGUF", files)
    found = hub.pull("u/r-GGUF")
    assert (found.path, found.origin, found.license) == (snapshot / "r-Q4_K_M.gguf", "Hugging Face", "apache-2.0")
    assert hf.hub.downloads() == []
    assert list(hf.cache.rglob("*.gguf")) == []


def test_the_default_of_a_repository_is_remembered_for_other_programs_too(hf: HubWorld) -> None:
    data = noise(6, 1000)
    hf.hub.add("u/no", {"n-Q8_0.gguf": data})
    hf_cache(hf.home / ".cache" / "huggingface" / "hub", "u/no", {"n-Q8_0.gguf": data})
    path = hub.resolve("u/no").path
    assert hub.resolve("u/no", offline=True).path == path
    assert hf.hub.downloads() == []


def test_a_damaged_file_of_another_program_is_left_alone(hf: HubWorld, caplog: pytest.LogCaptureFixture) -> None:
    root = hf.home / ".lmstudio" / "models"
    folder = root / "u" / "r-GGUF"
    folder.mkdir(parents=True)
    (folder / "r-Q4_K_M.gguf").write_bytes(bytes(len(hf.model)))
    before = untouched(root)
    with caplog.at_level(logging.WARNING, "edgellm"):
        assert hub.pull("u/r-GGUF").path == hf.path
    assert "of LM Studio is not the file of u/r-GGUF:Q4_K_M and is left alone" in caplog.text
    assert hf.path.read_bytes() == hf.model
    assert untouched(root) == before
    assert hub.resolve("u/r-GGUF").path == hf.path, "the cache goes before other programs"

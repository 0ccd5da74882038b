"""pack, and what list, rm and doctor say of tile caches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.seeds import k_quants
from unit.cli.conftest import CLI

from edgellm import _native
from edgellm.backends.native import NativeBackend
from edgellm.cli import pack
from edgellm.core import env
from edgellm.hub import tiles

pytestmark = pytest.mark.skipif(not _native.available(), reason="the native library is not here")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model in an otherwise empty cache directory."""
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    path = env.CACHE.get() / "models" / "mine" / "m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(k_quants().to_bytes())
    return path


def report(cli: CLI, *argv: str) -> dict[str, object]:
    code, out, _ = cli("pack", *argv, "--json")
    assert code == 0
    found: dict[str, object] = json.loads(out)
    assert list(found) == list(pack.JSON)
    return found


def test_pack_writes_once(cli: CLI, model: Path) -> None:
    path = tiles.in_cache(model)
    code, out, err = cli("pack", str(model))
    assert (code, out) == (0, f"{path}\n")
    size = path.stat().st_size
    assert err == f"packed: {size / 1e6:.1f} MB; any `edgellm run` of this model now starts from it\n"
    status = path.stat()
    code, out, err = cli("pack", "-m", str(model), "-t", "1")
    assert (code, out) == (0, f"{path}\n")
    assert err.startswith("already packed: ")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert report(cli, str(model)) == {
        "model": str(model), "path": str(path), "size": size, "written": False, "damaged": None, "freed": None
    }  # fmt: skip
    os.utime(model, ns=(5, 5))
    assert report(cli, str(model))["written"] is True


TERMINATED = """
import os, signal, sys
from edgellm.backends.native import tilefile
def write_at(fd, data, at):
    os.kill(os.getpid(), signal.SIGTERM)
    return os.pwrite(fd, data, at)
tilefile.write_at = write_at
from edgellm.cli import main
code = main(["pack", sys.argv[1]])
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="ending a program of Windows is no signal to it")
def test_a_program_that_is_told_to_end_leaves_nothing_half_written(model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TERMINATED, str(model)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "True\n", "")
    assert list(tiles.tiles_dir().iterdir()) == []


def test_pack_beside_the_model(cli: CLI, model: Path, tmp_path: Path) -> None:
    beside = model.with_name("m.gguf.tiles")
    assert report(cli, str(model), "-o", str(beside))["path"] == str(beside)
    assert report(cli, str(model))["path"] == str(beside), "it is found there"
    assert not tiles.in_cache(model).exists()
    elsewhere = tmp_path / "x" / "any name"
    assert report(cli, str(model), "--output", str(elsewhere))["written"] is True
    assert report(cli, str(model), "--output", str(elsewhere), "--verify")["damaged"] == []
    code, _, err = cli("pack", str(model), "-o", str(model))
    assert code == 1
    assert "m.gguf is not replaced: it begins with b'GGUF" in err


def test_inspect_says_what_auto_would_do(cli: CLI, model: Path) -> None:
    def layout() -> str:
        memory = json.loads(cli("inspect", str(model), "--json").out)["memory"]
        return str(memory["layout"])

    assert layout() == "tiles"
    cli("pack", str(model))
    assert layout() == "cache"
    assert "weights would be run from its tile cache" in cli("inspect", str(model)).out
    os.utime(model, ns=(5, 5))
    assert layout() == "tiles"


def test_verify(cli: CLI, model: Path) -> None:
    code, out, err = cli("pack", str(model), "--verify")
    assert (code, out) == (1, "")
    assert "has no tile cache that fits it: `edgellm pack` writes one" in err
    cli("pack", str(model))
    code, out, err = cli("pack", str(model), "--verify")
    assert (code, err.partition(":")[0]) == (0, "undamaged")
    path = tiles.in_cache(model)
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)
    code, out, err = cli("pack", str(model), "--verify")
    assert (code, out) == (1, f"{path}\n")
    assert "is damaged: 1 tensors, blk.0.attn_q.weight. Delete it (`edgellm pack --remove`) and pack again" in err
    code, out, _ = cli("pack", str(model), "--verify", "--json")
    assert (code, json.loads(out)["damaged"]) == (1, ["blk.0.attn_q.weight"])


def test_remove_and_prune(cli: CLI, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    for path in (model, other):
        cli("pack", str(path))
    size = tiles.in_cache(model).stat().st_size
    assert report(cli, str(model), "--remove")["freed"] == size
    assert report(cli, str(model), "--remove")["freed"] == 0
    assert report(cli, "--prune")["freed"] == 0
    other.unlink()
    code, out, err = cli("pack", "--prune")
    assert (code, out, err) == (0, "", f"removed {size / 1e6:.1f} MB of tiles\n")
    assert tiles.all_caches() == []


def test_options_that_contradict_each_other(cli: CLI, model: Path) -> None:
    for argv in (["--verify", "--remove"], ["--remove", "--prune"], ["--remove", "-o", "x"], ["-t", "0"]):
        code, out, err = cli("pack", str(model), *argv)
        assert (code, out) == (2, ""), argv
        assert err.startswith("edgellm: ")


def test_a_weights_option(cli: CLI, model: Path) -> None:
    for weights in ("cache", f"cache:{tiles.in_cache(model)}"):
        assert cli("run", "--raw", str(model), "hello", "-n", "1", "--weights", weights, fake=NativeBackend()).code == 0
    assert cli("run", "--raw", str(model), "hello", "--weights", "cache:/nothing/there", fake=NativeBackend()).code == 1
    code, _, err = cli("run", str(model), "hello", "--weights", "cache:")
    assert code == 2
    assert "invalid choice" in err


def test_list_rm_and_doctor(cli: CLI, model: Path, tmp_path: Path) -> None:
    name = "mine/m"
    assert json.loads(cli("list", "--json").out)["local"][0]["tiles"] == 0
    assert "tiles" not in cli("list").out
    folder = str(tiles.tiles_dir())
    found = json.loads(cli("doctor", "--json", "--no-measure").out)["tiles"]
    assert found == {"folder": folder, "number": 0, "bytes": 0, "orphaned": 0}
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    for path in (model, other):
        cli("pack", str(path))
    size = tiles.in_cache(model).stat().st_size
    assert f"{model}  (+ {size / 1e6:.1f} MB of tiles)\n" in cli("list").out
    assert json.loads(cli("list", "--json").out)["local"][0]["tiles"] == size
    other.unlink()
    out = cli("doctor", "--no-measure").out
    assert (
        f"2 caches with {2 * size / 1e6:.1f} MB in {folder}, 1 of models that are gone (`edgellm pack --prune`)" in out
    )
    n_bytes = model.stat().st_size
    removed = json.loads(cli("rm", name, "--json").out)["removed"]
    assert removed == [{"name": name, "freed": n_bytes + size, "tiles": size}]
    assert not tiles.in_cache(model).exists()
    assert tiles.in_cache(other).exists(), "not a model of the cache: that is for --prune"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_regular_file_is_not_replaced(cli: CLI, model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        code, out, err = cli("pack", str(model), "-o", str(path))
        assert (code, out) == (1, "")
        assert "is not replaced: it is not a regular file" in err
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["", ".", "/", "a\0b"])
def test_an_output_that_names_no_file(cli: CLI, model: Path, name: str) -> None:
    code, out, err = cli("pack", str(model), "-o", name)
    assert (code, out) == (2, "")
    assert "--output needs the name of a file" in err


def test_elsewhere_it_is_found_by_its_name_only(cli: CLI, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.tiles"
    code, _, err = cli("pack", str(model), "-o", str(path))
    assert code == 0
    assert f"`--weights cache:{path}` now starts from it" in err


def test_remove_leaves_what_is_no_cache(cli: CLI, model: Path) -> None:
    notes = tiles.beside(model)
    notes.write_text("my notes")
    assert report(cli, str(model), "--remove")["freed"] == 0
    assert notes.read_text() == "my notes"


def test_remove_says_what_it_cannot_delete(cli: CLI, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("pack", str(model))[0] == 0

    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, err = cli("pack", str(model), "--remove")
    assert code == 1
    assert "cannot be deleted: Permission denied" in err


def test_a_model_that_cannot_be_seen_is_not_gone(
    cli: CLI, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("pack", str(model))[0] == 0
    (cache,) = tiles.all_caches()
    stat = os.stat

    def refuse(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if path == cache.source:
            raise PermissionError(13, "Permission denied")
        return stat(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refuse)
    assert not cache.orphaned
    monkeypatch.undo()
    assert tiles.TileCache(cache.path, Path("x" * 5000), 1).orphaned
    assert tiles.TileCache(cache.path, tmp_path / "never", 1).orphaned

"""The C example of docs/c-api.md: built against the header and the library, run on plan files, compared with Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from distribution.conftest import TinyPlan, chosen, dump_plan, lacking

FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="module")
def generate(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled by the system's compiler with one command, as the page says."""
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    library = repository / "edgellm" / "_native"
    if os.name == "nt" or compiler is None:
        lacking("there is no C compiler (or this is Windows, where tests/distribution/test_cross.py builds it)")
    source, program = repository / "native" / "examples" / "generate.c", tmp_path_factory.mktemp("c") / "generate"
    include = repository / "native" / "include"
    command = [compiler, *FLAGS, f"-I{include}", source, "-o", program, f"-L{library}", "-ledgellm"]
    done = subprocess.run([*map(str, command), f"-Wl,-rpath,{library}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_it_prints_the_tokens_that_python_chooses(generate: Path, tiny_plan: TinyPlan) -> None:
    done = run(generate, tiny_plan.path, *tiny_plan.arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == tiny_plan.answer
    assert len(done.stdout.split()) > 1


def test_it_does_so_on_a_real_model(generate: Path, smollm2_path: Path, tmp_path: Path) -> None:
    plan, tokens = tmp_path / "model.plan", [504, 3575, 282, 4649, 314]
    dump_plan(smollm2_path, plan, 256)
    done = run(generate, plan, 24, *tokens)
    assert (done.stdout, done.stderr) == (chosen(smollm2_path, tokens, 24, 256), "")


def test_it_refuses_what_is_no_plan_and_what_does_not_fit(generate: Path, tiny_plan: TinyPlan, tmp_path: Path) -> None:
    broken = tmp_path / "broken.plan"
    data = bytearray(tiny_plan.path.read_bytes())
    broken.write_bytes(data[:-100])
    assert "the file has been cut" in run(generate, broken, *tiny_plan.arguments).stderr
    data[16] ^= 1
    broken.write_bytes(data)
    assert "another version of the library" in run(generate, broken, *tiny_plan.arguments).stderr
    broken.write_bytes(b"GGUF" + data[4:])
    assert "not a plan file" in run(generate, broken, *tiny_plan.arguments).stderr
    assert "cannot read" in run(generate, tmp_path / "none", *tiny_plan.arguments).stderr
    too_long = run(generate, tiny_plan.path, 127, *tiny_plan.arguments[1:])
    assert (too_long.returncode, "do not fit the context" in too_long.stderr) == (1, True)
    assert run(generate).returncode == 1


def test_the_page_names_every_function_of_the_header(repository: Path) -> None:
    import re

    header = (repository / "native" / "include" / "edgellm.h").read_text()
    between = re.sub(r"/\*.*?\*/", "", header.split("/* cdef begin */")[1].split("/* cdef end */")[0], flags=re.DOTALL)
    functions = set(re.findall(r"\b(el_\w+)\s*\([^;{}]*\);", between))
    structs = set(re.findall(r"^} (el_\w+);", between, re.MULTILINE))
    page = (repository / "docs" / "c-api.md").read_text()
    assert len(functions) > 15
    assert {name for name in functions | structs if f"`{name}`" not in page} == set()

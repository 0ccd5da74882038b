"""Starts the native test programs when the session begins, one after the other beside the tests in Python, and has
their tests come last: most tests use one core."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TEST = "test_program"
_running = pytest.StashKey[tuple[ThreadPoolExecutor, dict[Path, "Future[subprocess.CompletedProcess[str]]"]]]()


def program_path(build: str, name: str) -> Path:
    """Where `make test` builds a program."""
    return REPOSITORY / "build" / build / "tests" / (name + (".exe" if os.name == "nt" else ""))


_alive: list[subprocess.Popen[str]] = []


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """The program's end and output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([str(program)], cwd=REPOSITORY, text=True, **pipes) as process:  # type: ignore[call-overload]
        _alive.append(process)
        out, err = process.communicate()
        _alive.remove(process)
    return subprocess.CompletedProcess([str(program)], process.returncode, out, err)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    programs = [i for i in items if i.path.parent == Path(__file__).parent and getattr(i, "originalname", "") == TEST]
    items[:] = [i for i in items if i not in programs] + programs


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    pool, jobs = ThreadPoolExecutor(1, "native-programs"), {}
    for item in session.items:
        if item.path.parent == Path(__file__).parent and getattr(item, "originalname", "") == TEST:
            params = item.callspec.params  # type: ignore[attr-defined]
            path = program_path(params["build"], params["name"])
            if path.exists() and not any(item.iter_markers("skip")):
                jobs[path] = pool.submit(run, path)
    session.config.stash[_running] = (pool, jobs)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _running in session.config.stash:
        session.config.stash[_running][0].shutdown(wait=False, cancel_futures=True)
    for process in _alive:  # the session was interrupted
        process.kill()


@pytest.fixture
def finished(request: pytest.FixtureRequest) -> object:
    """finished(program): its end and output, when it has come."""
    jobs = request.config.stash[_running][1]
    return lambda program: jobs[program].result() if program in jobs else run(program)

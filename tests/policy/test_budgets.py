"""A file can be held in the head: Python up to 600 lines (aim at 250), C up to 900 (aim at 400)."""

from __future__ import annotations

from pathlib import Path

from policy.source import tracked_files

BUDGETS = {".py": 600, ".c": 900, ".h": 900, ".inl": 900}

EXEMPT: dict[str, str] = {}
"""Path -> why it may be longer. Generated files and data tables only."""

MAX_FILE_BYTES = 1_000_000
MAX_GOLDEN_BYTES = 5_000_000


def too_long(files: dict[str, int], exempt: dict[str, str]) -> list[str]:
    """Those of `files` (path -> number of lines) above their budget, and exemptions that are not needed."""
    wrong = [
        f"{path}: {lines} lines, at most {BUDGETS[Path(path).suffix]}"
        for path, lines in files.items()
        if lines > BUDGETS.get(Path(path).suffix, lines) and path not in exempt
    ]
    idle = [p for p in exempt if files.get(p, 0) <= BUDGETS.get(Path(p).suffix, 0)]
    return wrong + [f"{path}: exempt without need" for path in idle]


def test_files_keep_their_budget(repository: Path) -> None:
    files = {
        p.relative_to(repository).as_posix(): len(p.read_text(encoding="utf-8").splitlines())
        for p in tracked_files(repository)
        if p.suffix in BUDGETS
    }
    assert len(files) > 10
    assert too_long(files, EXEMPT) == []


def test_the_check_finds() -> None:
    assert too_long({"edgellm/a.py": 601, "native/a.c": 900}, {}) == ["edgellm/a.py: 601 lines, at most 600"]
    assert too_long({"native/a.c": 901}, {"native/a.c": "a table"}) == []
    assert too_long({"native/a.c": 9}, {"native/a.c": "a table"}) == ["native/a.c: exempt without need"]


def test_the_repository_stays_lean(repository: Path) -> None:
    sizes = {p.relative_to(repository).as_posix(): p.stat().st_size for p in tracked_files(repository)}
    assert {path: n for path, n in sizes.items() if n > MAX_FILE_BYTES} == {}
    assert sum(n for path, n in sizes.items() if path.startswith("tests/golden/")) < MAX_GOLDEN_BYTES

"""Keep a model's weights as tiles in a file, so that it starts at once: `--weights cache`, and `auto` too, run from it.

The file is mapped by every process that runs the model: they share its memory. It is written for one model, one version
of edgellm and this layout of tiles; any other is never used. Without --output it lies in the cache directory. On file
systems that do not say when a file last changed (FAT, exFAT), the whole model is read at every start to compare it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from edgellm.cli import options
from edgellm.cli.progress import Bars
from edgellm.core.errors import CacheError, ConfigError
from edgellm.hub import tiles as caches

JSON = {
    "model": "path of the model's (first) file; null with --prune",
    "path": "the tile cache: written, or found good; null with --remove and --prune",
    "size": "its bytes; null with them",
    "written": "whether it was written now",
    "damaged": "with --verify, list of the tensors whose tiles are damaged; null without",
    "freed": "bytes that --remove or --prune deleted; null without them",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm pack`."""
    options.add_model(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write this file; MODEL.gguf.tiles beside the model is found again"
    )
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one a performance core)")
    parser.add_argument("--verify", action="store_true", help="read the tile cache that is there; 1 if it is damaged")
    parser.add_argument("--remove", action="store_true", help="delete the tile caches of the model")
    parser.add_argument("--prune", action="store_true", help="delete the tile caches of models that are gone")
    parser.add_argument("--no-strict", action="store_true", help="open files with unknown metadata, with a warning")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the path")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.verify + args.remove + args.prune > 1:
        raise ConfigError("give one of --verify, --remove and --prune")
    if args.output is not None and (args.remove or args.prune):
        raise ConfigError("--output is for writing: delete that file yourself")
    report: dict[str, Any] = dict.fromkeys(JSON)
    report["written"] = False
    if args.prune:
        report["freed"] = caches.remove_orphans()
    else:
        model = options.find(args).path
        report["model"] = str(model)
        if args.remove:
            report["freed"] = caches.remove_of(model)
        else:
            with _ended_as_by_ctrl_c():
                _pack(args, model, report)
    _print(report, args.json)
    return 1 if report["damaged"] else 0


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """A SIGTERM meanwhile deletes what is half written, too, before it ends the program."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _pack(args: argparse.Namespace, model: Path, report: dict[str, Any]) -> None:
    from edgellm.backends.lower import lower
    from edgellm.backends.native import tilefile
    from edgellm.core.env import MAX_THREADS
    from edgellm.gguf.reader import GGUFFile
    from edgellm.models.spec import load_plan

    if args.threads is not None and not 1 <= args.threads <= MAX_THREADS:
        raise ConfigError(f"-t must be from 1 to {MAX_THREADS}, found {args.threads}")
    with GGUFFile(model) as file, Bars() as bars:
        plan = load_plan(file, strict=not args.no_strict)[0]
        entries = tilefile.lay_out(file, plan, lower(plan, lambda tensor: file.tensors[tensor].qtype))
        total = max(1, tilefile.total_bytes(entries))

        def progress(label: str) -> tilefile.Progress:
            return lambda fraction: bars.work(int(fraction * total), total, label)

        if args.output is not None:
            path = _output(args.output)
        else:
            good = (p for p in caches.places(file.path) if tilefile.is_good(p, file, entries))
            path = next(good, caches.in_cache(file.path))
        if args.verify:
            if not os.path.exists(path):
                raise CacheError(f"{file.path} has no tile cache that fits it: `edgellm pack` writes one")
            tiles = tilefile.open_tiles(path, file, entries)
            report["damaged"] = tilefile.damaged(tiles, entries, progress("verifying"))
        elif not tilefile.is_good(path, file, entries):
            tilefile.write(path, file, entries, progress("packing"), args.threads or 0)
            report["written"] = True
        report["path"], report["size"] = str(path), path.stat().st_size


def _output(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as e:  # no such user
        raise ConfigError(f"--output {text!r:.80}: {e}") from None
    if not path.name or "\0" in text:
        raise ConfigError(f"--output needs the name of a file, found {text!r:.80}")
    return path


def _print(report: dict[str, Any], as_json: bool) -> None:
    if report["freed"] is not None:
        text = f"removed {report['freed'] / 1e6:.1f} MB of tiles"
    elif report["damaged"]:
        shown = ", ".join(report["damaged"][:4]) + (", ..." if len(report["damaged"]) > 4 else "")
        text = (
            f"{report['path']} is damaged: {len(report['damaged'])} tensors, {shown}. "
            f"Delete it (`edgellm pack --remove`) and pack again"
        )
    else:
        done = "packed" if report["written"] else "undamaged" if report["damaged"] is not None else "already packed"
        found = os.path.realpath(report["path"]) in map(os.path.realpath, caches.places(Path(report["model"])))
        use = "any `edgellm run` of this model" if found else f"`--weights cache:{report['path']}`"
        text = f"{done}: {report['size'] / 1e6:.1f} MB; {use} now starts from it"
    print(text, file=sys.stderr)
    if as_json:
        print(json.dumps(report))
    elif report["path"] is not None:
        print(report["path"])

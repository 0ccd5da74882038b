"""What text needs beyond the file: the tokenizer's tables and the compiled chat template, built in a thread."""

from __future__ import annotations

import threading

from edgellm.chat.template import ChatTemplate
from edgellm.tokenizer import Tokenizer


class Warming:
    """Builds them once `start` is called. A text call that comes sooner builds what it needs, or waits for it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Idempotent."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._build, name="edgellm-tokenizer", daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait until what was begun is done."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _build(self) -> None:
        self._tokenizer.warm()
        self._template.warm()

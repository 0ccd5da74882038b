"""`edgellm run`: where the prompt comes from, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import END, N_VOCAB, TOKENS, ids, saying
from unit.cli.conftest import CLI, command, environment

from edgellm.backends.fake import FakeBackend

HELLO = ("--temp", "0")


def seen_prompts(answer: str = "Hello.") -> tuple[FakeBackend, list[str]]:
    """A model that answers, and the texts of the prompts it got (control tokens left out)."""
    from serving.tiny import BYTES

    prompts: list[str] = []
    script = saying(answer)
    alphabet = {c: b for b, c in enumerate(BYTES)}

    def spell(past: Any) -> Any:
        token = script(past)
        if token == ids(answer)[0]:
            from edgellm.tokenizer.pieces import byte_to_char

            back = {c: b for b, c in byte_to_char().items()}
            text = b"".join(bytes(back[c] for c in TOKENS[t]) for t in past if t < N_VOCAB - 2)
            if text.decode() not in prompts:
                prompts.append(text.decode())
        return token

    assert len(alphabet) == 256
    return FakeBackend(spell), prompts


def test_the_answer_goes_to_stdout_and_nothing_else_anywhere(cli: CLI, tiny: str) -> None:
    assert cli("run", tiny, "Hi", *HELLO, fake=FakeBackend(saying("Hello."))) == (0, "Hello.\n", "")


@pytest.mark.parametrize(
    ("argv", "stdin", "prompt"),
    [
        (["run", "MODEL", "Name three colors."], "", "Name three colors."),
        (["run", "MODEL", "Name", "three", "colors."], "", "Name three colors."),
        (["run", "-m", "MODEL", "Name", "three"], "", "Name three"),
        (["run", "-m", "MODEL", "Name"], "", "Name"),
        (["run", "MODEL", "-p", "Name"], "", "Name"),
        (["run", "-m", "MODEL", "-p", "Name"], "", "Name"),
        (["run", "MODEL", "-n", "6", "Name", "three"], "", "Name three"),
        (["run", "--temp", "0", "MODEL", "--top-k", "5", "Name", "-n", "6", "three"], "", "Name three"),
        (["run", "MODEL", "--", "-5 degrees"], "", "-5 degrees"),
        (["run", "MODEL", "-f", "FILE"], "", "from the\nfile"),
        (["run", "MODEL", "words", "-p", "flag", "-f", "FILE"], "pipe\n", "words\n\nflag\n\nfrom the\nfile\n\npipe"),
        (["run", "MODEL"], "piped in\n", "piped in"),
        (["run", "MODEL", "Sum up:"], "line 1\nline 2\n", "Sum up:\n\nline 1\nline 2"),
        (["run", "MODEL", "Sum up:"], "  \n", "Sum up:"),
        (["run", "MODEL", "Grüße 🙂"], "", "Grüße 🙂"),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_where_the_prompt_comes_from(
    cli: CLI, tiny: str, tmp_path: Path, argv: list[str], stdin: str, prompt: str, raw: bool
) -> None:
    (tmp_path / "prompt.txt").write_text("from the\nfile\n", encoding="utf-8")
    words = [{"MODEL": tiny, "FILE": str(tmp_path / "prompt.txt")}.get(a, a) for a in argv]
    fake, prompts = seen_prompts()
    assert cli(words[0], *(["--raw"] if raw else []), *words[1:], stdin=stdin, fake=fake)[:2] == (0, "Hello.\n")
    assert prompts == [prompt if raw else f"user\n{prompt}\nassistant\n"]


def test_a_system_message(cli: CLI, tiny: str) -> None:
    fake, prompts = seen_prompts()
    assert cli("run", tiny, "Hi", "-sys", "Be kind.", fake=fake).code == 0
    assert prompts == ["system\nBe kind.\nuser\nHi\nassistant\n"]


def test_json_has_everything(cli: CLI, tiny: str) -> None:
    code, out, err = cli("run", tiny, "Hi", "--json", "-s", "7", "--temp", "0", fake=FakeBackend(saying("Grüße.")))
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["text"] == "Grüße."
    assert result["token_ids"] == [*ids("Grüße."), END]
    assert (result["finish_reason"], result["stop"], result["seed"]) == ("stop", None, 7)
    assert result["usage"]["total_tokens"] == result["usage"]["prompt_tokens"] + 9
    assert set(result["timings"]) == {"queue", "prefill", "decode", "first_token"}
    assert result["fingerprint"].startswith("el1-")
    assert out.isascii()
    assert out.count("\n") == 1


def test_verbose_prints_figures_and_the_seed_to_stderr(cli: CLI, tiny: str) -> None:
    code, out, err = cli("run", tiny, "Hi", "-v", "-s", "7", *HELLO, fake=FakeBackend(saying("Hello.")))
    assert (code, out) == (0, "Hello.\n")
    assert "answer 7 tokens" in err
    assert "seed 7" in err


def test_options_reach_the_request(cli: CLI, tiny: str) -> None:
    fake = FakeBackend(saying("abcdef"))
    assert cli("run", tiny, "Hi", *HELLO, "-n", "3", fake=fake).out == "abc\n"
    assert cli("run", tiny, "Hi", *HELLO, "--predict", "0", fake=fake).out == "\n"
    assert cli("run", tiny, "Hi", *HELLO, "--n-predict", "-1", fake=fake).out == "abcdef\n"
    assert cli("run", tiny, "Hi", *HELLO, "--stop", "cd", fake=fake).out == "ab\n"
    assert cli("run", tiny, "Hi", *HELLO, "--stop", "x", "--stop", "e", fake=fake).out == "abcd\n"
    hot = ["--temp", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "20", "--json"]
    texts = [json.loads(cli("run", tiny, "Hi", *hot, "-s", s).out)["token_ids"] for s in ("1", "1", "2", "-1", "-1")]
    assert texts[0] == texts[1]
    assert len({tuple(t) for t in texts}) == 4


@pytest.mark.parametrize("option", ["--logprobs", "--prompt-logprobs"])
def test_log_probabilities_that_nothing_would_show_are_refused(cli: CLI, tiny: str, option: str) -> None:
    code, out, err = cli("run", tiny, "Hi", option, "2")
    assert (code, out) == (2, "")
    assert "add --json" in err
    assert cli("run", tiny, "Hi", option, "2", "-n", "1", "--json").code == 0
    code, out, err = cli("chat", tiny, option, "2", stdin="Hi\n")
    assert (code, out) == (2, "")
    assert "a chat shows no log-probabilities" in err


def test_an_answer_that_the_context_ends_says_so(cli: CLI, tiny: str) -> None:
    n = json.loads(cli("run", "--raw", tiny, "abcdef", "-n", "1", "--json").out)["usage"]["prompt_tokens"]
    for more, text in ((0, "\n"), (2, "xx\n")):
        code, out, err = cli(
            "run", "--raw", tiny, "abcdef", "-c", str(n + more), *HELLO, fake=FakeBackend(saying("xxxx"))
        )
        assert (code, out) == (0, text)
        assert err == f"edgellm: the answer ends because the context of {n + more} tokens is full: -c sets it\n"
    assert cli("run", "--raw", tiny, "abcdef", "-n", "2", *HELLO, fake=FakeBackend(saying("xxxx"))).err == ""


def test_a_base_model_explains_itself(cli: CLI, tiny_base: str) -> None:
    fake = FakeBackend(saying(" Paris."))
    code, out, err = cli("run", tiny_base, "The capital of France is", *HELLO, fake=fake)
    assert (code, out) == (2, "")
    assert "is a base model" in err
    assert f"edgellm run --raw {tiny_base}" in err
    assert "edgellm chat smollm2:135m" in err
    code, out, err = cli("run", "--raw", tiny_base, "The capital of France is", *HELLO, fake=fake)
    assert (code, out, err) == (0, " Paris.\n", "")


def test_a_prompt_where_the_model_belongs(cli: CLI) -> None:
    code, _, err = cli("run", "Name three colors.")
    assert code == 2
    assert "edgellm run smollm2:135m 'Name three colors.'" in err


def test_no_prompt(cli: CLI, tiny: str) -> None:
    for argv in ([], ["--raw"], ["--json"]):
        code, _, err = cli("run", tiny, *argv)
        assert code == 2
        assert "there is no prompt" in err
    for argv in (["--raw"], ["--json"]):
        assert cli("run", tiny, *argv, stdin=None).code == 2


def test_without_a_prompt_on_a_terminal_the_chat_opens(terminal: Any, tiny: str) -> None:
    screen = terminal("run", tiny)
    screen.wait_for("/? for help")
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("Hello.")
    screen.type("/bye\r")
    assert screen.end() == 0


@pytest.mark.parametrize(
    ("argv", "stdin", "code", "words"),
    [
        (["x" * 300], "", 1, "exceeds the available context size (256 tokens)"),
        (["-f", "/nowhere/at/all"], "", 2, "cannot read /nowhere/at/all"),
        ([], b"\xff\xfe caf\xe9", 2, "what was piped in is not text in utf-8"),
        (["--raw", ""], "", 1, "the prompt has no tokens"),
        (["Hi", "-c", "99999999999"], "", 2, "n_ctx must be an integer"),
        (["Hi", "-t", "0"], "", 2, "n_threads must be an integer"),
        (["Hi", "-ub", "0"], "", 2, "n_batch must be an integer"),
    ],
)
def test_what_cannot_be_done(cli: CLI, tiny: str, argv: list[str], stdin: Any, code: int, words: str) -> None:
    result = cli("run", tiny, *argv, stdin=stdin)
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert "Traceback" not in result.err


def test_a_failure_in_the_middle_of_an_answer(cli: CLI, tiny: str) -> None:
    script = saying("abcdef")
    fake = FakeBackend(script, failing=lambda past: past[-2:] == ids("bc"))
    code, out, err = cli("run", tiny, "Hi", *HELLO, fake=fake)
    assert (code, out) == (1, "abc\n")
    assert "non-finite" in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")
def test_an_interrupt_stops_the_answer_and_exits_130(tiny: str) -> None:
    process = subprocess.Popen(
        command("run", tiny, "Hi", "--temp", "0", answers=("word " * 40,), pace=0.1),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == ""
    assert (first + out).endswith("\n")
    assert "word word" in "word word " * 2
    assert len(first + out) < 150  # of 200, at ten a second


def test_the_model_is_found_by_default_or_explained(cli: CLI) -> None:
    code, _, err = cli("run", "-p", "Hi")
    assert code == 1
    assert "smollm2:135m is not on this machine" in err
    assert "--offline" in err


def test_batch_sizes(cli: CLI, tiny: str) -> None:
    sizes: list[int] = []
    fake = FakeBackend(saying("x"), on_step=lambda batch: sizes.append(len(batch.tokens)))
    cli("run", tiny, "word " * 20, "-b", "64", "-ub", "16", *HELLO, fake=fake)
    assert max(sizes) == 16
    sizes.clear()
    cli("run", tiny, "word " * 20, "-b", "32", *HELLO, fake=fake)
    assert max(sizes) == 32


def test_cache_types(cli: CLI, tiny: str) -> None:
    out = cli("run", tiny, "Hi", "-ctk", "f32", "-ctv", "f16", "-n", "1", "--json").out
    assert json.loads(out)["fingerprint"].endswith("-f32+f16")
    out = cli("run", tiny, "Hi", "-ctk", "fp8", "-ctv", "fp8_e4m3", "-n", "1", "--json").out
    assert json.loads(out)["fingerprint"].endswith("-fp8_e4m3")
    code, _, err = cli("run", tiny, "Hi", "-ctk", "q5_1")
    assert code == 2
    assert "q8_0" in err


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ([], "• one and two\n"),
        (["--no-markdown"], "- **one** and two\n"),
        (["--simple-io"], "- **one** and two\n"),
        (["--raw"], "- **one** and two\n"),
    ],
)
def test_an_answer_on_a_terminal(terminal: Any, tiny: str, argv: list[str], shown: str) -> None:
    screen = terminal("run", tiny, "Hi", *HELLO, *argv, answers=("- **one** and two",))
    screen.wait_for(shown)
    assert screen.end() == 0


def test_json_has_the_documented_keys(cli: CLI, tiny: str) -> None:
    from edgellm.cli import run

    assert list(json.loads(cli("run", tiny, "Hi", "--json", fake=FakeBackend(saying("x"))).out)) == list(run.JSON)


def test_log_probabilities_in_json(cli: CLI, tiny: str) -> None:
    out = cli("run", tiny, "Hi", *HELLO, "--json", "--logprobs", "2", fake=FakeBackend(saying("Hey"))).out
    content = json.loads(out)["logprobs"]["content"]
    assert [t["token"] for t in content[:3]] == ["H", "e", "y"]
    assert all(t["logprob"] <= 0 and len(t["top_logprobs"]) == 2 for t in content)
    assert json.loads(out)["prompt_logprobs"] is None
    out = cli("run", tiny, "Hi", *HELLO, "--json", "--prompt-logprobs", "1", fake=FakeBackend(saying("Hey"))).out
    first, *rest = json.loads(out)["prompt_logprobs"]
    assert first is None
    assert all(t["logprob"] <= 0 for t in rest)
    assert json.loads(out)["logprobs"] is None


def test_a_file_without_end_is_refused(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("edgellm.cli.options.MAX_TEXT", 1 << 20)
    path = tmp_path / "long.txt"
    path.write_text("a" * ((1 << 20) + 1))
    code, out, err = cli("run", tiny, "-f", str(path))
    assert (code, out) == (2, "")
    assert f"{path} has more than 1 million characters" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--draft", "prompt"],
        ["--draft", "MODEL"],
        ["-md", "MODEL"],
        ["--model-draft", "MODEL"],
        ["--spec-type", "ngram-simple"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["--speculative-config", '{"model": "MODEL", "num_speculative_tokens": 4}'],
        ["--draft", "none"],
    ],
    ids=" ".join,
)
def test_guessing_changes_nothing(cli: CLI, tiny: str, words: list[str]) -> None:
    words = [word.replace("MODEL", tiny) for word in words]
    said = "A tale, a tale, a tale of a tale."
    assert cli("run", tiny, "Hi", *HELLO, *words, fake=FakeBackend(saying(said))) == (0, said + "\n", "")


def test_what_a_draft_is(cli: CLI, tiny: str) -> None:
    code, out, err = cli("run", tiny, "Hi", "--draft", "16")
    assert (code, out) == (2, "")
    assert "names a model, or is prompt, found 16" in err
    code, _, err = cli("run", tiny, "Hi", "--draft", "no-such-model")
    assert code == 1
    assert "no-such-model" in err
    code, out, err = cli("run", tiny, "Hi", *HELLO, "--draft-max", "8", fake=FakeBackend(saying("Yes.")))
    assert (code, out) == (0, "Yes.\n")
    assert err.startswith("edgellm: --draft-max: how much is guessed is learnt")


def test_a_prefix_cache_on_disk(cli: CLI, tiny: str, tmp_path: Path) -> None:
    folder, prompt = tmp_path / "prefixes", "word " * 30
    for found in (0, 64):
        options = ["--prefix-cache-dir", str(folder), "--prefix-cache-size", "0.5", "--json", *HELLO]
        code, out, _ = cli("run", tiny, prompt, *options, fake=FakeBackend(saying("Yes.")))
        assert code == 0
        assert json.loads(out)["usage"]["cached_tokens"] == found
    code, _, err = cli("run", tiny, "Hi", "--prefix-cache-dir", str(folder), "--prefix-cache-size", "0")
    assert (code, "prefix_cache_size must be" in err) == (2, True)

"""The slash commands of the chat, in this process, over a scripted model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import saying, write_tiny
from unit.cli.conftest import CLI

from edgellm.backends.fake import FakeBackend
from edgellm.cli import commands, sampling, session, show
from edgellm.core.config import SamplingParams

GREEDY = ("--temp", "0")


@pytest.fixture
def chat(cli: CLI, tiny: str) -> Any:
    """chat("line", "line", answers=(...)) -> Result: what these lines give on a pipe."""

    def call(*lines: str, answers: tuple[str, ...] = ("One.", "Two.", "Three."), argv: tuple[str, ...] = GREEDY) -> Any:
        return cli(
            "chat", tiny, *argv, stdin="".join(f"{line}\n" for line in lines), fake=FakeBackend(saying(*answers))
        )

    return call


# -- help ------------------------------------------------------------------------------------------------------


def test_help(chat: Any) -> None:
    err = chat("/?").err
    for command in commands.COMMANDS:
        assert f"  {', '.join(command.names)}" in err
        assert command.help.split()[0] in err
    assert max(map(len, err.splitlines())) <= 100


def test_help_of_one_command(chat: Any) -> None:
    assert chat("/? save").err == chat("/help /save").err == "  /save [NAME]  save the conversation\n"
    assert "there is no command /frobnicate" in chat("/? frobnicate").err
    assert "Ctrl-R" in chat("/? shortcuts").err
    for setting in commands.SETTINGS:
        assert f"/set {setting.name}" in chat("/? set").err
        assert f"/set {setting.name}" in chat("/set").err


def test_unknown_commands_say_how_to_send_them_all_the_same(chat: Any) -> None:
    result = chat("/etc/passwd is a file", '"""/etc/passwd is a file"""')
    assert result.out == "One.\n"
    assert 'unknown command /etc/passwd; /? lists the commands (""" before a message' in result.err


# -- the conversation ------------------------------------------------------------------------------------------


def test_undo_takes_the_last_message_back(chat: Any) -> None:
    result = chat("first", "second", "/undo", "/show messages", "/undo", "/undo")
    assert "taken back: the last message and its answer\n>>> first\n    One.\ntaken back" in result.err
    assert result.err.endswith("there is nothing to take back\n")


def test_system_in_several_lines(chat: Any) -> None:
    assert chat('/system """Be kind.', 'Be brief."""', "/system").err.endswith("Be kind.\nBe brief.\n")
    assert "Be kind." in chat("/set system Be kind.", "/show system").err
    assert chat("/show system").err == "no system message is set\n"


def test_read_puts_a_file_before_the_next_message(chat: Any, tmp_path: Path) -> None:
    path = tmp_path / "a note.txt"
    path.write_text("\nfirst line\nhello\n", encoding="utf-8")
    err = chat(f"/read {path}", f'/read "{path}"', "Sum up:", "/show messages", "More", "/show messages").err
    assert err.count("a note.txt: 18 characters, 14 tokens; it goes with your next message") == 2
    assert ">>> first line\n... hello\n... \n... first line\n... hello\n... \n... Sum up:\n    One.\n" in err
    assert err.count(">>> first line") == 2
    assert err.endswith(">>> More\n    Two.\n")
    assert ">>> x\n" in chat(f"/read {path}", "/clear", "x", "/show messages").err


def test_what_cannot_be_read(chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise").write_bytes(b"\xff\xfe" * (1 << 19))
    assert "is not text in utf-8" in chat(f"/read {tmp_path / 'noise'}").err
    assert "cannot read /nowhere/x: No such file" in chat("/read /nowhere/x").err
    assert "/read FILE puts" in chat("/read").err
    monkeypatch.setattr(commands, "MAX_READ_BYTES", 1 << 19)  # one MiB is in the file
    assert "is larger than" in chat(f"/read {tmp_path / 'noise'}").err
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe.json")
        for name in ("/dev/zero", str(tmp_path / "pipe.json"), str(tmp_path)):
            assert "regular file" in chat(f"/read {name}").err
        assert "pipe.json is not a regular file: it is no session" in chat(f"/load {tmp_path / 'pipe.json'}").err
    assert chat("/read /nowhere/x", "Hi").code == 0


# -- sessions --------------------------------------------------------------------------------------------------


def test_saved_loaded_and_gone_on_with(chat: Any, tiny: str) -> None:
    saved = chat("/system Be kind.", "Hi", "/set temperature 0.5", "/save trip", "/save")
    path = session.folder() / "trip.json"
    assert f"2 messages saved in {path}\n2 messages saved again in {path}\n" in saved.err
    document = json.loads(path.read_text())
    assert document["model"] == str(Path(tiny).resolve())
    assert document["parameters"] == {"temperature": 0.5}
    assert document["messages"] == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "One."}]
    loaded = chat("other", "/load trip", "/show system", "/show messages", "/set temp", "And?", "/save", "/load")
    assert loaded.out == "One.\nTwo.\n"
    assert f"2 messages loaded from {path}; the model is {tiny}" in loaded.err
    assert "Be kind.\n>>> Hi\n    One.\n  temperature " in loaded.err
    assert ">>> other" not in loaded.err
    assert "4 messages saved again in" in loaded.err
    assert "saved: trip\n" in loaded.err


def test_a_session_in_a_file(chat: Any, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert f"2 messages saved in {path}" in chat("Hi", f"/save {path}").err
    assert ">>> Hi" in chat(f"/load {path}", "/show messages").err


def test_what_cannot_be_saved_or_loaded(chat: Any, tmp_path: Path) -> None:
    assert "/save NAME keeps" in chat("/save").err
    assert "cannot be the name of a session" in chat("/save ../x").err
    assert "no session is saved yet" in chat("/load").err
    assert "cannot read" in chat("/load missing.json").err
    (tmp_path / "bad.json").write_text("{}")
    result = chat("Hi", f"/load {tmp_path / 'bad.json'}", "/show messages")
    assert "is no session" in result.err
    assert ">>> Hi" in result.err, "the conversation is still there"
    assert result.code == 0


def test_another_model_is_opened(chat: Any, tmp_path: Path, tiny: str, tiny_base: str) -> None:
    other = str(write_tiny(tmp_path / "other.gguf", n_ctx=128))
    err = chat("Hi", f"/load {other}", "/show messages", "/show info").err
    assert f"{other}: the conversation starts anew\nnothing was said yet\n" in err
    assert "128 tokens (trained for 128)" in err
    for name, words in ((tiny_base, "is a base model"), ("nowhere:1b", "no model is called")):
        err = chat("Hi", f"/load {name}", "/show messages", "/show info").err
        assert words in err
        assert ">>> Hi" in err
        assert f"model         {tiny}" in err


def test_a_session_opens_its_model(chat: Any, cli: CLI, tmp_path: Path, tiny: str) -> None:
    other = str(write_tiny(tmp_path / "other.gguf", n_ctx=128))
    cli("chat", other, *GREEDY, stdin="Hi\n/save elsewhere\n", fake=FakeBackend(saying("One.")))
    err = chat("/load elsewhere", "/show info").err
    assert f"the model is {Path(other).resolve()}" in err
    path = session.folder() / "elsewhere.json"
    path.write_text(path.read_text().replace('"el', '"el9-'))
    assert "answers may differ" in chat("/load elsewhere").err


# -- settings --------------------------------------------------------------------------------------------------


def test_parameters_are_set_shown_and_unset(chat: Any) -> None:
    err = chat("/set parameter temperature 0.25", "/set temp", "/set parameter temperature default").err
    assert err.splitlines() == [
        "  temperature            0.25  (set)",
        "  temperature            0.25  (set)",
        "  temperature            0.8  (default)",
    ]
    assert '  stop                   ["a b", "c"]  (set)' in chat('/set parameter stop "a b" c').err
    assert "  max_tokens             2  (set)" in chat("/set parameter num_predict 2").err
    assert chat("/set num_predict 2", "Hi").out == "On\n"
    assert chat("/set parameter stop n", "Hi").out == "O\n"
    assert "  seed                   7  (set)" in chat("/set parameter seed 7").err
    assert "  seed                   not set" in chat("/set parameter seed -1").err


def test_parameters_of_the_model_itself(cli: CLI, tmp_path: Path) -> None:
    path = str(write_tiny(tmp_path / "own.gguf", **{"general.sampling.temp": 0.25}))
    assert "  temperature            0.25  (the model's default)" in cli("chat", path, stdin="/show parameters\n").err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set parameter frobnicate 1", "there is no parameter 'frobnicate'; /show parameters lists them"),
        ("/set parameter temprature 1", "there is no parameter 'temprature'; did you mean temperature?"),
        ("/set parameter temperature", "temperature            0  (set)"),
        ("/set parameter temperature hot", "temperature takes T, found 'hot'"),
        ("/set parameter temperature 1 2", "temperature takes T, found '1 2'"),
        ("/set parameter temperature -1", "temperature must be a number from 0"),
        ("/set parameter num_ctx many", "num_ctx takes one number"),
        ("/set parameter num_ctx -5", "n_ctx must be an integer"),
        ("/set parameter", "top_k"),
        ("/set frobnicate", "there is no setting 'frobnicate'"),
        ("/set markdwn", "there is no setting 'markdwn'; did you mean markdown?"),
        ("/set format json", "answers cannot be constrained to a format in this release"),
        ("/set think", "thinking cannot be switched in this release"),
    ],
)
def test_settings_that_are_wrong(chat: Any, line: str, words: str) -> None:
    result = chat(line, "/show parameters")
    assert words in result.err
    assert "  temperature            0  (set)" in result.err, "nothing has changed"
    assert result.code == 0


def test_the_context_and_the_threads_are_changed_by_opening_again(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    err = chat("Hi", "/set parameter num_ctx 64", "/show info", "/show messages", "/set num_thread 1").err
    assert "context: 64 tokens" in err
    assert "64 tokens (trained for 256)" in err
    assert ">>> Hi" in err
    assert "threads: 1" in err


def test_other_names_of_parameters(chat: Any) -> None:
    err = chat("/set repetition_penalty 1.5", "/set typ_p 0.5", "/set parameter ignore_eos on").err
    assert err.splitlines() == [
        "  repeat_penalty         1.5  (set)",
        "  typical_p              0.5  (set)",
        "  ignore_eos             true  (set)",
    ]
    assert "ignore_eos takes true or false, found 'perhaps'" in chat("/set ignore_eos perhaps").err


def test_switches(chat: Any) -> None:
    result = chat("/set verbose", "Hi", "/set quiet", "Hi", "/set nomarkdown", "/set markdown", "/set nowordwrap")
    assert result.err.count("seed") == 1
    for said in ("figures are shown", "figures are not shown", "text is shown as it is", "Markdown is shown"):
        assert said in result.err
    assert "what you type is not stored" in chat("/set history").err, "from a pipe nothing is"
    assert "what you type is not stored" in chat("/set nohistory").err


# -- show ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", show.TOPICS)
def test_every_topic_shows_something(chat: Any, topic: str) -> None:
    result = chat(f"/show {topic}")
    assert (result.code, result.out) == (0, "")
    assert result.err.strip()


def test_topics(chat: Any, cli: CLI, tmp_path: Path, tiny: str) -> None:
    assert chat("/show").err == f"/show {'|'.join(show.TOPICS)}\n"
    err = chat("Hi", "/show info").err
    assert f"model         {tiny}" in err
    assert "tokens (trained for 256), " in err
    assert "used" in err
    assert "<|im_start|>" in chat("/show template").err
    modelfile = chat("/system Be kind.", "/set stop a b", "/set num_predict 5", "/show modelfile").err
    assert f"FROM {tiny}" in modelfile
    assert 'SYSTEM """Be kind."""' in modelfile
    assert 'PARAMETER stop "a"\nPARAMETER stop "b"' in modelfile
    assert "PARAMETER num_predict 5" in modelfile
    licensed = str(write_tiny(tmp_path / "licensed.gguf", **{"general.license": "apache-2.0"}))
    assert cli("chat", licensed, stdin="/show license\n").err == "  apache-2.0\n"
    assert chat("/show license").err == "the file does not name a licence\n"


# -- completion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "some"),
    [
        ("/s", ["/set ", "/show ", "/system ", "/save "]),
        ("/by", ["/bye"]),
        ("/set mark", ["/set markdown"]),
        ("/set parameter temp", ["/set parameter temperature"]),
        ("/show te", ["/show template"]),
        ("/? sh", ["/? shortcuts", "/? show"]),
        ("/frobnicate x", []),
        ("/clear x", []),
        ("/show info x", []),
    ],
)
def test_tab(before: str, some: list[str]) -> None:
    assert commands.complete(before) == some


def test_tab_completes_files_and_sessions(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    assert commands.complete(f"/read {tmp_path}/f") == [f"/read {tmp_path}/file.txt", f"/read {tmp_path}/folder/"]
    assert commands.complete("/read /nowhere/at/all/x") == []
    assert commands.complete("/load ") == []
    session.save(session.Session("m"), session.path_of("trip"))
    assert commands.complete("/load t") == ["/load trip"]
    assert commands.complete("/save ") == ["/save trip"]


# -- the table of sampling options -----------------------------------------------------------------------------


def test_every_option_is_a_field_and_every_field_has_an_option() -> None:
    fields = set(SamplingParams.__dataclass_fields__)
    assert {o.field for o in sampling.OPTIONS} == fields
    assert len({flag for o in sampling.OPTIONS for flag in o.flags}) == sum(len(o.flags) for o in sampling.OPTIONS)


def params(*argv: str) -> SamplingParams:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sampling.add_arguments(parser)
    return sampling.from_arguments(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {}),
        (["--temp", "0.5", "--top-k", "5"], {"temperature": 0.5, "top_k": 5}),
        (["-s", "-1", "-n", "-1"], {}),
        (["-s", "7", "-n", "3"], {"seed": 7, "max_tokens": 3}),
        (["--stop", "a", "-r", "b", "--reverse-prompt", "c"], {"stop": ("a", "b", "c")}),
        (["-l", "3+1.5", "-l", "4-2", "--logit-bias", "5-inf"], {"logit_bias": {3: 1.5, 4: -2.0, 5: float("-inf")}}),
        (["-l", "5false"], {"logit_bias": {5: float("-inf")}}),
        (["--typical", "0.5", "--top-nsigma", "2"], {"typical_p": 0.5, "top_n_sigma": 2.0}),
        (["--xtc-probability", "0.5", "--xtc-threshold", "0.2"], {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
        (
            ["--dry-multiplier", "1", "--dry-sequence-breaker", "\\n", "--dry-sequence-breaker", ";"],
            {"dry_multiplier": 1.0, "dry_sequence_breakers": ("\n", ";")},
        ),
        (["--dry-sequence-breaker", "none"], {"dry_sequence_breakers": ()}),
        (
            ["--mirostat", "2", "--mirostat-lr", "0.2", "--mirostat-ent", "4"],
            {"mirostat": 2, "mirostat_eta": 0.2, "mirostat_tau": 4.0},
        ),
        (["--dynatemp-range", "0.5", "--dynatemp-exp", "2"], {"dynatemp_range": 0.5, "dynatemp_exponent": 2.0}),
        (["--ignore-eos", "--min-tokens", "3"], {"ignore_eos": True, "min_tokens": 3}),
        (
            ["--stop-token-ids", "1,2", "--allowed-token-ids", "3"],
            {"stop_token_ids": (1, 2), "allowed_token_ids": (3,)},
        ),
        (["--logprobs", "2", "--prompt-logprobs", "1"], {"logprobs": 2, "prompt_logprobs": 1}),
    ],
)
def test_options_become_fields(argv: list[str], expected: dict[str, Any]) -> None:
    assert params(*argv) == SamplingParams(**expected)


@pytest.mark.parametrize("argv", [["-l", "3"], ["-l", "+3"], ["-l", "x+3"], ["-l", "3+x"], ["--temp", "x"]])
def test_values_that_are_wrong(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        params(*argv)
    assert "invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.5, "seed": 3},
        {"stop": ("a", "b")},
        {"logit_bias": {3: float("-inf"), 4: 1.0}},
        {"stop_token_ids": (1, 2), "allowed_token_ids": (3,), "ignore_eos": True, "dry_sequence_breakers": ()},
    ],
)
def test_plain_data_and_back(given: dict[str, Any]) -> None:
    whole = SamplingParams(**given)
    plain = json.loads(json.dumps(sampling.given_fields(whole), allow_nan=False))
    assert sampling.build(plain) == whole

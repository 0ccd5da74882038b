"""`edgellm serve` takes the options of llama-server and vLLM: honoured, accepted, or refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.cli import command_parser, drafts, serve
from edgellm.core.errors import ConfigError
from edgellm.server.flags import FLAGS

LLAMA_SERVER = """
-m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -dr --docker-repo --offline -a --alias
--tags -c --ctx-size -n --predict --n-predict -b --batch-size -ub --ubatch-size -np --parallel -cb -nocb --cont-batching
-t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll --numa -fa --flash-attn -ctk
--cache-type-k -ctv --cache-type-v -kvu -no-kvu --kv-unified --kv-unified-per-slot --swa-full -ctxcp --ctx-checkpoints
-cms -cram --cache-ram --cache-prompt --no-cache-prompt --cache-reuse --cache-idle-slots -sps --slot-prompt-similarity
--context-shift --no-context-shift --keep -lm --load-mode -lzm --lazy-mode --mmap --no-mmap --mlock --repack -nr
--check-tensors --override-kv -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts -mg -dev --list-devices -ot
--override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -fit -fitt -fitc -kvo -nkvo -nopo --no-host --rpc --rope-scaling
--rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow
--yarn-beta-fast --lora --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled
--control-vector-layer-range --mmproj -mmu --no-mmproj --image --audio --image-min-tokens --image-max-tokens --samplers
--sampler-seq -s --seed --ignore-eos --temp --temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma
--xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n --repeat-penalty --presence-penalty
--frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker
--adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent -l
--logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file -bs --backend-sampling -md --model-draft
--spec-draft-model -hfd -ngld -td -ctkd -ctvd --spec-draft-n-max --spec-draft-n-min --spec-draft-p-min
--spec-draft-p-split --mtp --eagle3 --dflash --draft --draft-max --draft-min --spec-type --spec-default --host --port
--api-prefix --path --reuse-port --api-key --api-key-file --ssl-key-file --ssl-cert-file --cors-origins --cors-methods
--cors-headers --cors-credentials -to --timeout --sse-ping-interval --threads-http --metrics --props --slots --no-slots
--slot-save-path --embedding --embeddings --rerank --reranking --pooling --embd-normalize --jinja --no-jinja
--chat-template --chat-template-file --chat-template-kwargs --skip-chat-parsing --prefill-assistant
--no-prefill-assistant --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget
--reasoning-budget-message --reasoning-preserve --spm-infill --warmup --no-warmup -sp --special -r --reverse-prompt
--models-dir --models-preset --models-max --models-autoload --sleep-idle-seconds --ui --no-ui --webui --tools
--mcp-servers-config --mcp-servers-json --agent --media-path --log-file --log-jsonl --log-colors --log-prefix
--log-timestamps -v -lv --log-disable --gpt-oss-20b-default --fim-qwen-7b-default -h --license --completion-bash -p -f
--file -sys --system-prompt -sysf -cnv -no-cnv -st --single-turn -i -mli --multiline-input --in-prefix --in-suffix -e
--escape --simple-io --no-display-prompt --show-timings -co --color --prompt-cache --prompt-cache-all --prompt-cache-ro
--print-token-count --spec-ngram-size-n
"""

VLLM = """
--host --port --uds --served-model-name --api-key --ssl-keyfile --ssl-certfile --allowed-origins --allowed-methods
--allowed-headers --allow-credentials --root-path --max-model-len --max-num-seqs --max-num-batched-tokens --block-size
--kv-cache-dtype --gpu-memory-utilization --enable-prefix-caching --no-enable-prefix-caching --enable-chunked-prefill
--scheduling-policy --seed --max-logprobs --chat-template --default-chat-template-kwargs --enable-auto-tool-choice
--tool-call-parser --reasoning-parser --enable-lora --lora-modules --max-loras --max-lora-rank --speculative-config
--structured-outputs-config.backend --quantization --dtype --tensor-parallel-size --enable-force-include-usage
--enable-prompt-tokens-details --enable-request-id-headers --disable-log-stats --otlp-traces-endpoint
--kv-transfer-config --kv-offloading-size --kv-offloading-backend
"""


def parsed(*words: str) -> Any:
    """What the parser makes of a command line."""
    return command_parser("serve").parse_intermixed_args(list(words))


@pytest.mark.parametrize("flag", sorted({*LLAMA_SERVER.split(), *VLLM.split()}))
def test_every_flag_is_known(flag: str) -> None:
    assert flag in known()


def known() -> set[str]:
    """Every option that the parser has."""
    if not _KNOWN:
        _KNOWN.update(command_parser("serve")._option_string_actions)
    return _KNOWN


_KNOWN: set[str] = set()


def test_every_row_is_accepted_or_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command_parser("serve")
    for flag in FLAGS:
        for name in flag.names:
            words = [name, *["7"] * (flag.values if isinstance(flag.values, int) else 0)]
            if flag.accepted:
                assert parser.parse_intermixed_args(words).notes == [f"{name}: {flag.text}"]
                continue
            with pytest.raises(SystemExit) as e:
                parser.parse_intermixed_args(words)
            assert e.value.code == 2
            assert f"{name}: {flag.text}" in capsys.readouterr().err


def test_a_refused_flag_may_ask_for_nothing() -> None:
    assert parsed("--tensor-parallel-size", "1").model is None
    with pytest.raises(SystemExit):
        parsed("--tensor-parallel-size", "2")


def test_a_line_of_vllm_runs_with_the_model_changed() -> None:
    args = parsed("m", "--dtype", "bfloat16", "--max-model-len", "8192", "--gpu-memory-utilization", "0.90",
                  "--enable-chunked-prefill", "--max-num-seqs", "4", "--kv-cache-dtype", "auto")  # fmt: skip
    assert (args.model, args.ctx_size, args.parallel, args.kv_cache_dtype) == ("m", 8192, 4, "f16")
    assert len(args.notes) == 3


def test_a_line_of_llama_server_runs() -> None:
    args = parsed("-m", "m", "-c", "4096", "-ngl", "99", "-fa", "on", "-np", "2", "--host", "0.0.0.0", "--port", "9",
                  "--api-key", "a,b", "--temp", "0.2", "--no-mmap", "-ctk", "q8_0", "--jinja")  # fmt: skip
    settings = serve.settings_of(args)
    assert settings.api_keys == ("a", "b")
    assert (settings.host, settings.port, settings.is_local) == ("0.0.0.0", 9, False)
    assert settings.defaults.temperature == 0.2
    assert args.weights == "tiles"
    assert serve.settings_of(parsed("--host", "")).is_local is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["-np", "0"], "-np must be from 1"),
        (["--api-key", ""], "--api-key is empty"),
        (["--cors-origins", "*", "--cors-credentials"], "any page"),
        (["--ssl-key-file", "x"], "belong together"),
        (["--temp", "-1"], "temperature"),
        (["--api-key", "schlüssel"], "ASCII"),
    ],
)
def test_settings_are_checked(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve.settings_of(parsed(*words))


def test_keys_from_a_file_and_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\ntwo\n")
    assert serve.settings_of(parsed("--api-key-file", str(file))).api_keys == ("one", "two")
    monkeypatch.setenv("EDGELLM_API_KEY", "three")
    assert serve.settings_of(parsed()).api_keys == ("three",)
    assert serve.settings_of(parsed("--api-key", "four")).api_keys == ("four",)


def test_guessing_from_the_text() -> None:
    assert parsed("m").draft is None
    assert parsed("m", "--spec-type", "none").draft is None
    for words in (
        ["-md", "small.gguf"],
        ["--draft", "small.gguf"],
        ["--speculative-config", '{"model": "small.gguf", "num_speculative_tokens": 5}'],
    ):
        assert parsed("m", *words).draft == "small.gguf"
    for words in (
        ["--spec-type", "ngram-simple,ngram-mod"],
        ["--spec-default"],
        ["--draft", "prompt"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'],
    ):
        assert parsed("m", *words).draft == "prompt"
    with pytest.raises(SystemExit):
        parsed("m", "--spec-type", "draft-eagle3")
    with pytest.raises(SystemExit):
        parsed("m", "--draft", "16")
    assert parsed("m", "--draft-max", "16").notes == ["--draft-max: how much is guessed is learnt from what it brings"]


def test_prefixes_on_disk() -> None:
    for words in (
        ["--prefix-cache-dir", "/a", "--prefix-cache-size", "0.5"],
        ["--local-disk", "file:///a", "--max-local-disk-size", "0.5"],
    ):
        found = drafts.prefix_cache(parsed("m", *words))
        assert found == {"prefix_cache_dir": "/a", "prefix_cache_size": 1 << 29}
    assert drafts.prefix_cache(parsed("m"))["prefix_cache_dir"] is None


def test_names_of_the_model() -> None:
    args = parsed("-a", "one,two", "m")
    assert (args.alias, args.model) == (["one,two"], "m")
    assert parsed("m", "--served-model-name", "one", "two").alias == ["one", "two"]


def test_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("LLAMA_ARG_PORT=9000", "LLAMA_ARG_CTX_SIZE=4k", "LLAMA_ARG_MODEL=m", "EDGELLM_ARG_PORT=9001",
                 "LLAMA_ARG_ALIAS=one,two", "LLAMA_ARG_N_PREDICT=7"):  # fmt: skip
        monkeypatch.setenv(*line.split("="))
    args = parsed("-c", "512")
    assert (args.port, args.ctx_size, args.model_flag, args.alias, args.max_tokens) == (9001, 512, "m", ["one,two"], 7)
    monkeypatch.setenv("EDGELLM_ARG_PORT", "many")
    with pytest.raises(ConfigError, match="EDGELLM_ARG_PORT is set to 'many'"):
        parsed()
    monkeypatch.setenv("EDGELLM_ARG_PORT", "")
    monkeypatch.setenv("LLAMA_ARG_CACHE_TYPE_K", "q9")
    with pytest.raises(ConfigError, match="LLAMA_ARG_CACHE_TYPE_K"):
        parsed()


@pytest.mark.parametrize(("text", "n"), [("8k", 8000), ("8K", 8192), ("auto", 0), ("-1", 0), ("512", 512)])
def test_context_sizes(text: str, n: int) -> None:
    assert parsed("--max-model-len", text).ctx_size == n

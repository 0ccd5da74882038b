"""Options of llama-server and vLLM that `edgellm serve` does not have itself: what each comes to.

ACCEPTED changes nothing here and is said so once; REFUSED names what to do instead. Options that mean something are
the parser's own (edgellm/cli/serve.py).
"""

from __future__ import annotations

from typing import NamedTuple


class Flag(NamedTuple):
    """Options with one fate. values: how many words follow ("?": one or none). harmless: values that ask for nothing,
    with which a refused option is accepted."""

    names: tuple[str, ...]
    values: int | str
    text: str
    accepted: bool
    harmless: tuple[str, ...] = ()


def _rows(
    accepted: bool, table: tuple[tuple[str, int | str, str] | tuple[str, int | str, str, str], ...]
) -> list[Flag]:
    return [Flag(tuple(row[0].split()), row[1], row[2], accepted, tuple("".join(row[3:]).split())) for row in table]


_CPU = "everything is computed by the CPU"
_TUNED = "how prompts are cached has no settings and never changes an answer"
_BATCH = "requests are always batched continuously, prompts always in chunks"
_SPECULATIVE = (
    "how much is guessed is learnt, not set: `-md MODEL` guesses by a smaller model, `--spec-type ngram` from the text"
)
_LATER = "not in this release: leave it out"
_TERMINAL = "is for the terminal: use `edgellm chat` or `edgellm run`"
_ROPE = "the scaling that the file describes is used: leave it out"

ACCEPTED = _rows(
    True,
    (
        ("-cb --cont-batching -nocb --no-cont-batching", 0, _BATCH),
        ("--enable-chunked-prefill --no-enable-chunked-prefill", 0, _BATCH),
        ("-tb --threads-batch --threads-http", 1, "-t says how many threads compute, prompts and answers alike"),
        ("--prio --poll --prio-batch --poll-batch", 1, "idle threads sleep, and busy ones need no priority"),
        ("-fa --flash-attn", "?", "attention never stores its scores"),
        ("-kvu --kv-unified -no-kvu --no-kv-unified", 0, "all requests share one pool of pages"),
        ("--swa-full", 0, "sliding windows never limit what can be reused"),
        ("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", 1, _TUNED),
        ("-cram --cache-ram --cache-reuse -sps --slot-prompt-similarity", 1, _TUNED),
        ("--cache-prompt --no-cache-prompt --cache-idle-slots --no-cache-idle-slots", 0, _TUNED),
        ("--enable-prefix-caching --no-enable-prefix-caching", 0, _TUNED),
        ("--no-context-shift", 0, "a full context ends the answer unless --context-shift is given"),
        ("-lzm --lazy-mode", 1, "--weights says how the file is used"),
        ("-ngl --gpu-layers --n-gpu-layers", 1, _CPU),
        ("-cmoe --cpu-moe", 0, _CPU),
        ("-ncmoe --n-cpu-moe", 1, _CPU),
        ("-kvo --kv-offload -nkvo --no-kv-offload -nopo --no-op-offload --no-host", 0, _CPU),
        ("-fit --fit -fitt --fit-target -fitc --fit-ctx", 1, "the context is fitted to the memory that is there"),
        ("-bs --backend-sampling", 0, "tokens are always chosen where the logits are"),
        ("--no-mmproj --no-mmproj-auto", 0, "messages hold text only"),
        ("--tags", 1, "models have no tags"),
        ("-to --timeout", 1, "a request may take as long as its client waits"),
        ("--cors-methods --cors-headers --allowed-methods --allowed-headers", 1, "--cors-origins decides who may call"),
        ("--props", 0, "/props is always there"),
        ("--embedding --embeddings", 0, "every route is always there"),
        ("--jinja", 0, "chat templates are always used"),
        ("--skip-chat-parsing --no-skip-chat-parsing --reasoning-preserve --no-reasoning-preserve", 0,
         "answers are passed on as the model writes them"),
        ("--warmup --no-warmup", 0, "the server is ready when it says so"),
        ("--models-autoload", 0, "models are loaded when they are asked for"),
        ("--log-colors", "?", "the log is plain text"),
        ("--log-prefix --log-timestamps --no-log-prefix --no-log-timestamps", 0, "--log-jsonl has times"),
        ("--block-size", 1, "a page of the cache holds 32 tokens"),
        ("--gpu-memory-utilization --swap-space --cpu-offload-gb", 1, _CPU),
        ("--kv-cache-memory-bytes", 1, "the cache is fitted to the memory that is there"),
        ("--dtype --model-impl", 1, "the types that the file has are used"),
        ("--enforce-eager --trust-remote-code --disable-custom-all-reduce", 0, "no code of a model is run"),
        ("--scheduling-policy", 1, "requests are served by priority, then as they come"),
        ("--max-logprobs", 1, "20 is the most that a request may ask for"),
        ("--enable-auto-tool-choice", 0, "tools are shown to the model; what it calls stays text in this release"),
        ("--tool-call-parser", 1, "what a model calls stays text in this release"),
        ("--reasoning-parser", 1, "thoughts are told apart by the marks of the chat template"),
        ("--structured-outputs-config.backend --guided-decoding-backend", 1, "no answers are constrained yet"),
        ("--enable-prompt-tokens-details --enable-request-id-headers", 0, "they are always there"),
        ("--disable-log-stats --disable-fastapi-docs", 0, "there is nothing to switch off"),
        ("--uvicorn-log-level", 1, "EDGELLM_LOG sets the level"),
        ("--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-draft-n-max --spec-draft-n-min "
         "--spec-draft-p-min --spec-draft-p-split --draft-max --draft-min --draft-n --draft-p-min", 1,
         "how much is guessed is learnt from what it brings"),
        ("-ngld --gpu-layers-draft -td --threads-draft", 1, "a draft model is computed as the model is"),
        ("--kv-offloading-size", 1, "the cache is in the memory of the CPU: --prefix-cache-dir keeps it on disk, too"),
    ),
)  # fmt: skip

REFUSED = _rows(
    False,
    (
        ("-hff --hf-file", 1, "write USER/NAME:QUANT after -hf"),
        ("-hft --hf-token", 1, "the token is read from HF_TOKEN"),
        ("-dr --docker-repo", 1, "give a name on Hugging Face: -hf USER/NAME:QUANT"),
        ("-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch", 1,
         "the affinity mask is respected: start with `taskset -c 0-3 edgellm serve ...`"),
        ("--cpu-strict --cpu-strict-batch", 1, "start with `taskset -c 0-3 edgellm serve ...`", "0"),
        ("--numa", 1, "start with `numactl --cpunodebind=0 --membind=0 edgellm serve ...`"),
        ("--kv-unified-per-slot", 1, "-c is the context of every request"),
        ("--keep", 1, "a full context ends the answer: use a larger -c", "0"),
        ("-lm --load-mode", 1, "`--weights mmap` runs from the file, `--weights tiles` repacks it", "auto"),
        ("--mlock", 0, "`--weights tiles` reads everything at start: use that, and memory limits of the system"),
        ("--check-tensors", 0, "`edgellm inspect --verify MODEL` checks a file"),
        ("--override-kv", 1, "change the file with gguf_set_metadata"),
        ("-sm --split-mode -ts --tensor-split -mg --main-gpu -dev --device -ot --override-tensor", 1,
         "models are computed by the CPU in this release: leave it out", "none"),
        ("--list-devices", 0, "`edgellm doctor` shows what there is"),
        ("--rpc", 1, "a model runs on one machine: leave it out"),
        ("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
         "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", 1, _ROPE),
        ("--lora --lora-scaled --control-vector --control-vector-scaled --lora-modules --max-loras --max-lora-rank", 1,
         f"adapters are {_LATER}"),
        ("--control-vector-layer-range", 2, f"control vectors are {_LATER}"),
        ("--lora-init-without-apply --enable-lora", 0, f"adapters are {_LATER}"),
        ("-mm --mmproj -mmu --mmproj-url --image --audio --image-min-tokens --image-max-tokens --media-path", 1,
         "models read text only in this release: leave it out"),
        ("--samplers --sampler-seq --sampling-seq", 1, "the order of samplers is fixed, see docs/sampling.md"),
        ("--adaptive-target --adaptive-decay", 1, f"adaptive sampling is {_LATER}", "-1 -1.0"),
        ("--grammar --grammar-file -j --json-schema -jf --json-schema-file", 1,
         f"constrained answers are {_LATER}"),
        ("-hfd --hf-repo-draft -ctkd --cache-type-k-draft -ctvd --cache-type-v-draft", 1,
         "`--draft USER/NAME:QUANT` names a draft model; its cache has the types of the model's"),
        ("--kv-transfer-config --kv-offloading-backend --hicache-storage-backend --hicache-size --hicache-ratio", 1,
         "`--prefix-cache-dir DIR` keeps prefixes on disk, `--prefix-cache-size` bounds them"),
        ("--enable-hierarchical-cache", 0, "`--prefix-cache-dir DIR` keeps prefixes on disk"),
        ("--mtp --eagle3 --dflash", 0, _SPECULATIVE),
        ("--reuse-port", 0, "one server a port: leave it out"),
        ("--path", 1, "the page is built in; --no-ui leaves it out"),
        ("--slot-save-path", 1, f"saved slots are {_LATER}"),
        ("--rerank --reranking", 0, f"reranking is {_LATER} (/v1/rerank says so too)"),
        ("--embd-normalize", 1, "a request says it with `embd_normalize`: leave it out", "2"),
        ("--no-jinja", 0, "chat templates are always used; /v1/completions works without"),
        ("--chat-template --chat-template-file", 1, "the file's own chat template is used: leave it out"),
        ("--reasoning-budget", 1, "`--reasoning off` switches thinking off; there is no other limit", "-1"),
        ("--reasoning-budget-message", 1, "thinking has no limit: leave it out"),
        ("--spm-infill", 0, "the order is prefix, suffix, middle: leave it out"),
        ("-sp --special", 0, "control tokens are not shown: leave it out"),
        ("--models-dir", 1, "set EDGELLM_CACHE, or put the files where `edgellm list` shows them"),
        ("--models-preset", 1, "all models get the options of the command line: leave it out"),
        ("--sleep-idle-seconds", 1, "--models-max bounds what stays in memory", "-1"),
        ("--ui-config --ui-config-file --webui-config --webui-config-file", 1, "the page keeps its own settings"),
        ("--tools --mcp-servers-config --mcp-servers-json", 1, "the server runs no programs for a model: leave it out"),
        ("--agent", 0, "the server runs no programs for a model: leave it out"),
        ("--log-file", 1, "the log goes to standard error: write 2>FILE"),
        ("--gpt-oss-20b-default --gpt-oss-120b-default --fim-qwen-1.5b-default --fim-qwen-3b-default "
         "--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --embd-gemma-default", 0,
         "name the model: -hf USER/NAME:QUANT"),
        ("--license", 0, "the licences are in the files LICENSE and models/catalog.toml"),
        ("--completion-bash", 0, "`edgellm completion bash` prints it"),
        ("-p --prompt -f --file -bf --binary-file -sys --system-prompt -sysf --system-prompt-file --in-prefix "
         "--in-suffix", 1, _TERMINAL),
        ("--prompt-cache", 1, "`--prefix-cache-dir DIR` keeps all prompts on disk"),
        ("-cnv --conversation -no-cnv --no-conversation -st --single-turn -i --interactive -if --interactive-first "
         "-mli --multiline-input -e --escape --no-escape --simple-io --no-display-prompt --show-timings "
         "--prompt-cache-all --prompt-cache-ro --print-token-count --in-prefix-bos", 0, _TERMINAL),
        ("-co --color", "?", _TERMINAL),
        ("--quantization -q", 1, "the file is quantised already: choose one by its name, USER/NAME:QUANT"),
        ("--tensor-parallel-size -tp --pipeline-parallel-size -pp --data-parallel-size -dp", 1,
         "a model runs on one machine's CPU: leave it out", "1"),
        ("--otlp-traces-endpoint", 1, "/metrics has the figures: leave it out"),
        ("--tokenizer --tokenizer-mode --load-format --revision --config-format", 1,
         "everything is in the GGUF file: leave it out", "auto gguf"),
        ("--mem-fraction-static --chunked-prefill-size --schedule-policy --grammar-backend", 1,
         "an option of SGLang: leave it out"),
    ),
)  # fmt: skip

FLAGS = (*ACCEPTED, *REFUSED)

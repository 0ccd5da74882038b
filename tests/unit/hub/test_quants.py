"""What a file's name says about its quantisation, and which files are one model."""

from __future__ import annotations

import pytest

from edgellm.hub.quants import Candidate, default, inside, label_of, matching, models, tag_of


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_0.gguf", "Q4_0"),
        ("Model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("x-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("Q8_0/model-00001-of-00003.gguf", "Q8_0"),
        ("Phi-3-mini-4k-instruct-fp16.gguf", "F16"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("m-NVFP4.gguf", "NVFP4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-Q6_K-f32.gguf", "Q6_K"),
        ("m-BF16.gguf", "BF16"),
        ("m.gguf", ""),
        ("Q4U-bq8_0x.gguf", ""),
    ],
)
def test_labels(path: str, label: str) -> None:
    assert label_of(path) == label


def test_models_of_a_repository() -> None:
    names = (
        "m-Q8_0-00002-of-00002.gguf m-Q8_0-00001-of-00002.gguf README.md m-Q4_K_M.gguf mmproj-F16.gguf "
        "m.mmproj-Q8_0.gguf imatrix_unsloth.gguf mtp-m-Q8_0.gguf sub/m-F16.GGUF b/x-00002-of-00003.gguf"
    )
    found = models(names.split())
    assert found == [
        Candidate("", ("b/x-00001-of-00003.gguf", "b/x-00002-of-00003.gguf"), 2),
        Candidate("Q4_K_M", ("m-Q4_K_M.gguf",)),
        Candidate("Q8_0", ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")),
        Candidate("F16", ("sub/m-F16.GGUF",)),
    ]
    assert [tag_of(c, found) for c in found] == ["x-00001-of-00003.gguf", "Q4_K_M", "Q8_0", "F16"]


def test_tags() -> None:
    all_ = models(
        [
            "a-Q4_K_M.gguf",
            "a-UD-Q4_K_M.gguf",
            "a-UD-Q2_K.gguf",
            "a-F16.gguf",
            "plain.gguf",
            "s/a-Q8_0-00001-of-00001.gguf",
        ]
    )

    def names(tag: str) -> list[str]:
        return [c.files[0] for c in matching(all_, tag)]

    assert names("q4_k_m") == ["a-Q4_K_M.gguf"]
    assert names("UD-Q4_K_M") == ["a-UD-Q4_K_M.gguf"]
    assert names("Q2_K") == ["a-UD-Q2_K.gguf"]
    assert names("fp16") == ["a-F16.gguf"]
    assert names("plain") == names("PLAIN.gguf") == ["plain.gguf"]
    assert names("a-Q8_0") == names("a-Q8_0-00001-of-00001.gguf") == ["s/a-Q8_0-00001-of-00001.gguf"]
    assert names("Q4_K") == names("Q5_K_M") == names("a") == names("") == []


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["Q8_0", "Q4_K_M", "Q4_0"], ["Q4_K_M"]),
        (["Q8_0", "UD-Q4_K_M"], ["UD-Q4_K_M"]),
        (["IQ2_XXS"], ["IQ2_XXS"]),
        (["Q8_0", "BF16"], ["BF16", "Q8_0"]),  # the caller lists them
        (["Q4_K_S", "Q4_0"], ["Q4_0", "Q4_K_S"]),
    ],
)
def test_the_default(there: list[str], expected: list[str]) -> None:
    assert [c.label for c in default(models(f"m-{q}.gguf" for q in there))] == expected


def test_two_models_in_one_repository() -> None:
    both = models(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "b-Q8_0.gguf"])
    assert len(default(both)) == 2
    assert [tag_of(c, both) for c in both] == ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "Q8_0"]


def test_folders_and_files() -> None:
    all_ = models(["Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf", "Q8/m.gguf", "m.gguf"])
    assert [c.files[0] for c in inside(all_, "q4/m-00002-of-00002.gguf")] == ["Q4/m-00001-of-00002.gguf"]
    assert [c.files[0] for c in inside(all_, "Q8/")] == [c.files[0] for c in inside(all_, "Q8")] == ["Q8/m.gguf"]
    assert inside(all_, "Q") == []


def test_sets_that_claim_to_be_large() -> None:
    """Names are somebody else's: thousands that claim sets of 99999 files cost no more than their own number."""
    found = models(f"m{i}-00001-of-99999.gguf" for i in range(5000))
    assert len(found) == 5000
    assert found[0] == Candidate("", ("m0-00001-of-99999.gguf", "m0-00002-of-99999.gguf"), 99998)
    assert models(["x-00000-of-00002.gguf"]) == [Candidate("", ("x-00000-of-00002.gguf",))]
    assert models(["x-00003-of-00002.gguf"]) == [Candidate("", ("x-00003-of-00002.gguf",))]

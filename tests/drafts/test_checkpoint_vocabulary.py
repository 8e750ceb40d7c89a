"""Draft vocabularies and mask rows: padded, pruned, mapped wrongly, or never trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ovgraft.drafts.checkpoint import read_checkpoint
from ovgraft.drafts.spec import DraftSpec, Family
from ovgraft.errors import CheckpointError
from tests.drafts.checkpoints import (
    BF16,
    BUILDERS,
    DRAFT_VOCAB,
    HIDDEN,
    RANK,
    VOCAB,
    Config,
    Tensors,
    write_checkpoint,
)

Reader = Callable[[Config, Tensors], DraftSpec]
Refuser = Callable[..., CheckpointError]


class TestVocabulary:
    def test_padding_is_identity_and_its_rows_are_cut(self, tmp_path: Path) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        pad = np.full((16, HIDDEN), 99, BF16)
        tensors["lm_head.weight"] = np.concatenate([tensors["lm_head.weight"], pad])
        w2 = np.concatenate([tensors["markov_head.markov_w2.weight"], pad[:, :RANK]])
        tensors["markov_head.markov_w2.weight"] = w2
        folder = write_checkpoint(tmp_path, config | {"draft_vocab_size": VOCAB + 16}, tensors)
        checkpoint = read_checkpoint(folder)
        vocabulary = checkpoint.spec.vocabulary
        assert (vocabulary.draft_size, vocabulary.lm_head_rows, vocabulary.pruned) == (VOCAB, VOCAB + 16, False)
        assert checkpoint.weights.tensor("lm_head.weight").shape == (VOCAB, HIDDEN)
        np.testing.assert_array_equal(checkpoint.weights.tensor("markov_head.markov_w2.weight"), w2[:VOCAB])
        assert checkpoint.target_ids() is None

    def test_an_identity_map_of_a_full_vocabulary(self, read: Reader, refused: Refuser) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        config |= {"draft_vocab_size": VOCAB, "architectures": ["Qwen3DSparkModel"]}
        identity = np.zeros(VOCAB, np.int64)
        assert not read(config, tensors | {"d2t": identity}).vocabulary.pruned
        swapped = identity.copy()
        swapped[:2] = (1, -1)
        refused(config, tensors | {"d2t": swapped}, "d2t", "not pruned")
        refused(config, tensors | {"t2d": np.arange(VOCAB) > 0}, "t2d", "not pruned")

    @pytest.mark.parametrize("gone", ["lm_head.weight", "d2t"])
    @pytest.mark.parametrize("name", ["minicpm_pruned", "speculators_dspark"])
    def test_a_pruned_draft_needs_its_own(self, refused: Refuser, name: str, gone: str) -> None:
        config, tensors = BUILDERS[name]()
        del tensors[gone]
        refused(config, tensors, gone, "missing")

    def test_a_pruned_z_lab_draft(self, read: Reader, refused: Refuser) -> None:
        config, tensors = BUILDERS["zlab_dflash2"]()
        _, donor = BUILDERS["speculators_dspark"]()
        tensors |= {name: donor[name] for name in ("lm_head.weight", "d2t")}
        config |= {"draft_vocab_size": DRAFT_VOCAB}
        refused(config, tensors, "candidate_selector.successor_codebook", "draft vocabulary")
        tensors["candidate_selector.successor_codebook"] = tensors["candidate_selector.successor_codebook"][
            :DRAFT_VOCAB
        ]
        spec = read(config, tensors)
        assert (spec.family, spec.candidate_position_offset, spec.vocabulary.pruned) == (Family.DFLASH2, 1, True)
        assert spec.shares_embedding

    def test_d2t_leaves_the_vocabulary(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["minicpm_pruned"]()
        for value, found in ((VOCAB - 5, f"5 + {VOCAB - 5} = {VOCAB}"), (-6, "5 + -6 = -1")):
            broken = tensors["d2t"].copy()
            broken[5] = value
            assert refused(config, tensors | {"d2t": broken}, "d2t").found == found

    def test_absolute_ids_instead_of_offsets(self, refused: Refuser) -> None:
        config, tensors = BUILDERS["speculators_dspark"]()
        absolute = tensors["d2t"] + np.arange(DRAFT_VOCAB)
        refused(
            config, tensors | {"d2t": absolute}, "t2d" if (absolute + np.arange(DRAFT_VOCAB)).max() < VOCAB else "d2t"
        )

    def test_a_map_of_another_draft(self, refused: Refuser, tmp_path: Path) -> None:
        config, tensors = BUILDERS["speculators_dspark"]()
        _, other = BUILDERS["speculators_dflash"]()
        error = refused(config, tensors | {"d2t": other["d2t"]}, "t2d", "different tokens")
        assert "as d2t says" in str(error.expected)
        digests = {
            read_checkpoint(write_checkpoint(tmp_path / str(n), config, tensors | token_map)).digest()
            for n, token_map in enumerate(({}, {key: other[key] for key in ("d2t", "t2d")}))
        }
        assert len(digests) == 2

    def test_duplicates_are_told(self, read: Reader) -> None:
        config, tensors = BUILDERS["minicpm_pruned"]()
        tensors["d2t"] = tensors["d2t"].copy()
        tensors["d2t"][9] = tensors["d2t"][2] + 2 - 9
        spec = read(config, tensors)
        assert spec.vocabulary.duplicate_tokens == 1
        assert [warning.code for warning in spec.warnings] == ["duplicate-draft-tokens"]
        assert "draft id 9" in spec.warnings[0].message

    def test_a_mask_row_of_zeros_is_told(self, read: Reader, tmp_path: Path) -> None:
        config, tensors = BUILDERS["deepspec_vanilla"]()
        table = tensors["embed_tokens.weight"].copy()
        table[config["mask_token_id"]] = 1e-6
        (warning,) = read(config, tensors | {"embed_tokens.weight": table}).warnings
        assert warning.code == "mask-row-near-zero"
        np.savez(tmp_path / "mask_embedding.npz", row=np.ones(HIDDEN, np.float32))
        assert read(config, tensors | {"embed_tokens.weight": table}).warnings == ()

    def test_a_mask_embedding_of_another_width(self, tmp_path: Path, refused: Refuser) -> None:
        for shape in ((HIDDEN + 1,), (2, HIDDEN)):
            np.savez(tmp_path / "mask_embedding.npz", row=np.ones(shape, np.float32))
            error = refused(*BUILDERS["zlab_dflash"](), "mask_embedding" if len(shape) == 1 else "row")
            assert error.file == tmp_path / "mask_embedding.npz"

    def test_a_pickled_mask_embedding_is_not_passed_over(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, *BUILDERS["zlab_dflash"]())
        (folder / "mask_embedding.pt").write_bytes(b"\x80\x02")
        with pytest.raises(CheckpointError, match="pickle"):
            read_checkpoint(folder)

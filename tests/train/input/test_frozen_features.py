"""Runs with cached features of frozen parts learn what runs without them learn."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from kata.data.frames.decode_scheduler import DecodeScheduler
from kata.data.loader.feature_cache import FeatureCache
from kata.errors import PolicyError
from kata.policies import build_policy
from kata.policies.rules import refuse_feature_cache
from kata.run import resolve_run
from kata.spec import Feature, FeatureType
from kata.train import train
from kata.train.input.frozen_features import RecordLayout, refuse_trained

FEATURES = (
    '{"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
INPUTS = {
    "observation.images.top": Feature(FeatureType.VISUAL, (3, 48, 64)),
    "observation.state": Feature(FeatureType.STATE, (3,)),
}
OUTPUTS = {"action": Feature(FeatureType.ACTION, (2,))}
EXPERT = "--policy.train_expert_only=true"


@pytest.fixture
def tools():
    sys.path.insert(0, str(Path(__file__).parents[3] / "tools/peer"))
    try:
        yield importlib.import_module
    finally:
        sys.path.pop(0)


@pytest.fixture
def make(tools, tiny_dataset, tmp_path):
    smolvlm = tools("tiny_smolvlm").write(tmp_path / "smolvlm")
    cases = tools("pi_cases")

    def run(name: str, *options: str):
        places = {
            "smolvla": [
                f"--policy.vlm_model_name={smolvlm}", "--policy.num_vlm_layers=2",
                "--policy.resize_imgs_with_padding=[32,32]", "--policy.num_steps=2",
            ],
            "act": ["--policy.pretrained_backbone_weights=null"],
            "pi0_fast": [
                f"--policy.text_tokenizer_name={cases.folder(cases.VOCABULARIES['pi0_fast'])}",
                f"--policy.action_tokenizer_name={cases.fast_folder()}",
                "--policy.image_resolution=[28,28]", "--policy.tokenizer_max_length=60",
                "--policy.fast_skip_tokens=8", "--policy.max_decoding_steps=12",
            ],
        }.get(name, [
            f"--policy.text_tokenizer_name={cases.folder(0)}", "--policy.image_resolution=[28,28]",
            "--policy.tokenizer_max_length=60", "--policy.num_inference_steps=2",
        ])  # fmt: skip
        sizes = ["--policy.max_state_dim=6", "--policy.max_action_dim=5"] if name != "act" else []
        return resolve_run(
            [
                f"--policy.type={name}", *places, *sizes, "--policy.chunk_size=4",
                "--policy.n_action_steps=2", f"--policy.input_features={FEATURES}",
                "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}",
                "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=4",
                "--steps=8", "--log_freq=8", "--dataset.episodes=[0]",
                "--save_checkpoint=false", "--num_workers=1",
                f"--dataset.cache_dir={tmp_path}/kept" if "--dataset.cache" in str(options) else
                "--seed=1000",
                *options,
            ]
        )[0]  # fmt: skip

    return run


def weights(trained) -> dict[str, torch.Tensor]:
    return dict(trained.state.policy.state_dict())


def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[key] - other[key]).abs().max().item() for key in one)


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [
        ("smolvla", "prefix", []),
        ("smolvla", "vision", ["--policy.train_expert_only=false"]),
        ("pi0", "prefix", [EXPERT]),
        ("pi0", "vision", ["--policy.freeze_vision_encoder=true"]),
        ("pi05", "vision", ["--policy.freeze_vision_encoder=true"]),
        ("pi0_fast", "vision", ["--policy.freeze_vision_encoder=true"]),
        ("pi05", "prefix", [EXPERT, "--policy.frozen_dtype=bfloat16"]),
    ],
)
def test_a_run_with_cached_features_learns_the_same(
    name, kind, given, make, tools, tmp_path, monkeypatch
):
    decoded, computed = [0], [0]
    with tools("pi_cases").tiny_own("pi0" if name == "smolvla" else name):
        plain = train(make(name, *given, f"--output_dir={tmp_path}/plain"))
        fill, store = DecodeScheduler.fill, FeatureCache.store

        def counting_fill(self, wanted, *rest):
            decoded[0] += bool(wanted)
            return fill(self, wanted, *rest)

        def counting_store(self, rows, records):
            computed[0] += len(rows)
            store(self, rows, records)

        monkeypatch.setattr(DecodeScheduler, "fill", counting_fill)
        monkeypatch.setattr(FeatureCache, "store", counting_store)
        options = (*given, f"--dataset.cache={kind}")
        first = train(make(name, *options, f"--output_dir={tmp_path}/first"))
        samples = computed[0]
        assert 0 < samples < 8 * 4, "later epochs compute none"
        again = train(make(name, *options, f"--output_dir={tmp_path}/again"))
        assert computed[0] == samples, "another run finds them"
    assert differ(weights(plain), weights(first)) < 2e-6
    assert differ(weights(plain), weights(again)) < 2e-6
    assert len(list((tmp_path / "kept/features").glob("*.pixels"))) == 1


def test_a_known_batch_reads_no_frame_and_a_small_cache_keeps_a_part(make, tmp_path, monkeypatch):
    read: list[int] = []
    fill = DecodeScheduler.fill

    def counting(self, wanted, *rest):
        read.append(sum(len(rows) for rows in wanted.values()))
        return fill(self, wanted, *rest)

    monkeypatch.setattr(DecodeScheduler, "fill", counting)
    whole = make("smolvla", "--dataset.cache=prefix", f"--output_dir={tmp_path}/whole")
    wanted = weights(train(whole))
    read.clear()
    train(make("smolvla", "--dataset.cache=prefix", f"--output_dir={tmp_path}/again"))
    assert sum(read) <= 1 + 4, "one sample for the shapes, and what the report shows"
    bytes_each = next((tmp_path / "kept/features").glob("*.pixels")).stat().st_size
    given = ("--dataset.cache=prefix", f"--dataset.cache_size={bytes_each // 2}")
    given = (*given, f"--dataset.cache_dir={tmp_path}/small", f"--output_dir={tmp_path}/part")
    assert differ(wanted, weights(train(make("smolvla", *given)))) < 2e-6


def test_other_weights_or_sentences_are_other_features(make, tmp_path):
    for seed in ("1", "2"):
        train(
            make(
                "smolvla", "--dataset.cache=vision", "--steps=1", f"--seed={seed}",
                f"--output_dir={tmp_path}/{seed}",
            )
        )  # fmt: skip
    assert len(list((tmp_path / "kept/features").glob("*.pixels"))) == 2


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("act", ["--dataset.cache=prefix"], ("none", "--dataset.cache=disk")),
        ("pi0", ["--dataset.cache=prefix"], ("trains", "--policy.train_expert_only=true")),
        (
            "smolvla",
            ["--dataset.cache=prefix", "--policy.train_expert_only=false"],
            ("vision", "--dataset.cache=vision"),
        ),
        (
            "smolvla",
            ["--dataset.cache=prefix", "--dataset.image_transforms.enable=true"],
            ("augmented", "leave out"),
        ),
    ],
)
def test_features_that_change_are_refused(name, given, words, make):
    with pytest.raises(PolicyError) as error:
        make(name, *given)
    for word in ("rule:", "remedy:", *words):
        assert word in str(error.value)


def test_features_of_shards_are_refused(make):
    with pytest.raises(PolicyError, match="shards"):
        refuse_feature_cache(make("smolvla").policy, "prefix", is_augmented=False, in_shards=True)


def test_an_adapter_in_the_frozen_part_is_refused(make):
    policy = build_policy(make("smolvla").policy.with_features(INPUTS, OUTPUTS))
    refuse_trained(policy, "prefix")
    next(policy.text.layers[0].parameters()).requires_grad_(True)
    with pytest.raises(PolicyError, match=r"text\.layers\.0.*"):
        refuse_trained(policy, "prefix")


def test_records_keep_features_of_all_types():
    features = {
        "mask": torch.tensor([[True, False, True]]),
        "half": torch.randn(1, 3).bfloat16(),
        "full": torch.randn(1, 2, 5),
        "one": torch.tensor([7]),
    }
    layout = RecordLayout(features)
    assert layout.row_bytes % 8 == 0
    two = {key: torch.cat((value, value.flip(-1))) for key, value in features.items()}
    found = layout.unpacked(layout.packed(two).clone())
    assert all(torch.equal(found[key], value) for key, value in two.items())
    with pytest.raises(PolicyError, match="do not depend on the batch"):
        layout.packed({**two, "full": two["full"][:, :1]})

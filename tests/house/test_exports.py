"""What each package offers is listed, exists, and nothing else is meant for use."""

import importlib
import pkgutil

import pytest

import kata

PACKAGES = [
    "kata",
    *sorted(m.name for m in pkgutil.walk_packages(kata.__path__, "kata.") if m.ispkg),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_exported_name_exists(name):
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", []):
        assert getattr(module, export) is not None
    assert module.__doc__, f"{name} says what it is for"


EXPORTS = {
    "kata": ["__version__"],
    "kata.train": ["Trained", "train"],
    "kata.data": [
        "Batches",
        "Column",
        "Dataset",
        "DatasetWriter",
        "Episodes",
        "Order",
        "Reader",
        "VideoOptions",
        "anchor_rows",
        "dataset_stats",
        "open_dataset",
    ],
    "kata.eval": ["Acting", "load_for_acting"],
    "kata.loader": ["Loader"],
    "kata.policies": [
        "POLICIES",
        "build_policy",
        "config_class",
        "lerobot_type",
        "policy_types",
        "stored_type",
    ],
}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_public_names_are_frozen(name):
    assert sorted(importlib.import_module(name).__all__) == sorted(EXPORTS[name])


TAUGHT = {
    "kata.config": ["option"],
    "kata.run": ["Run", "resolve_run"],
    "kata.policies.base": [
        "ActState",
        "ChunkPolicy",
        "KeyMap",
        "Loss",
        "ParamGroup",
        "Policy",
        "Term",
        "remember",
    ],
    "kata.policies.config": ["PolicyConfig"],
    "kata.optim.config": [
        "AdamConfig",
        "AdamWConfig",
        "ConstantWithWarmupConfig",
        "CosineAnnealingWithWarmupConfig",
        "CosineDecayWithWarmupConfig",
        "DiffuserSchedulerConfig",
        "OptimizerConfig",
        "SGDConfig",
        "SchedulerConfig",
        "VQBeTSchedulerConfig",
    ],
    "kata.spec": [
        "ACTION",
        "BOOKKEEPING",
        "Batch",
        "Column",
        "DATASET_INDEX",
        "DONE",
        "Draw",
        "ENV_STATE",
        "Feature",
        "FeatureType",
        "LANGUAGE_MASK",
        "LANGUAGE_TOKENS",
        "NormMode",
        "REWARD",
        "STATE",
        "Stats",
        "TASK",
        "Windows",
        "dim_pad_key",
        "missing_key",
        "pad_key",
    ],
    "kata.errors": [
        "CheckpointError",
        "ConfigError",
        "DataError",
        "DivergedError",
        "FrameError",
        "KataError",
        "PolicyError",
        "RankError",
    ],
}
"""Names that docs/python_api.md and docs/adding_a_policy.md teach: others may join, none may go."""


@pytest.mark.parametrize("name", TAUGHT)
def test_the_names_that_the_docs_teach_stay(name):
    module = importlib.import_module(name)
    assert not [taught for taught in TAUGHT[name] if taught not in vars(module)]

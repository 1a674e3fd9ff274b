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
        "Batches", "Dataset", "DatasetWriter", "Episodes", "Order", "Reader", "anchor_rows", "open_dataset",
    ],
    "kata.policies": ["POLICIES", "build_policy", "config_class", "policy_types"],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_the_public_names_are_frozen(name):
    assert sorted(importlib.import_module(name).__all__) == sorted(EXPORTS[name])

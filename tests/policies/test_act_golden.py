"""kata's ACT against LeRobot's on the same weights, batch and noise (written by tools/peer/golden_act.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).parents[2]
CASES = sorted(file.stem for file in (ROOT / "tests/golden/act").glob("*.safetensors"))
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def kata_act() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools/peer"))
    import kata_act

    yield kata_act
    sys.path.remove(str(ROOT / "tools/peer"))


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, kata_act: ModuleType) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(what LeRobot computed, what kata computes) for one case."""
    torch.set_num_threads(1)
    case = kata_act.act_cases.GOLDEN[request.param]
    golden = load_file(ROOT / f"tests/golden/act/{request.param}.safetensors")
    return golden, kata_act.run(case, case.config)


def test_every_golden_case_has_its_file(kata_act: ModuleType) -> None:
    assert sorted(kata_act.act_cases.GOLDEN) == CASES


def test_losses_chunk_and_actions_are_lerobots(
    pair: tuple[dict[str, Tensor], dict[str, Tensor]], kata_act: ModuleType
) -> None:
    golden, own = pair
    names = {name for name in golden if "/" not in name}
    assert names == {name for name in own if "/" not in name}
    assert names >= {"loss", "l1_loss", "eval_loss", "chunk", "actions"}
    for name in names:
        assert kata_act.difference(own[name], golden[name]) < TOLERANCE, name


def test_every_gradient_is_lerobots(pair: tuple[dict[str, Tensor], dict[str, Tensor]], kata_act: ModuleType) -> None:
    golden, own = pair
    gradients = {name.removeprefix("grad/"): value for name, value in own.items() if name.startswith("grad/")}
    assert {f"summary/{name}" for name in gradients} == {n for n in golden if n.startswith("summary/")}
    for name, gradient in gradients.items():
        summary = kata_act.act_cases.gradient_summary(gradient)
        assert kata_act.difference(summary, golden[f"summary/{name}"]) < TOLERANCE, name
        if f"grad/{name}" in golden:
            assert kata_act.difference(gradient, golden[f"grad/{name}"]) < TOLERANCE, name

"""Plans beside public figures: memory, wall-clock times, steps on four GPUs, scaling, throughput.

    python benchmarks/plan_guide.py [result.json [policy]]

The figures are those of LeRobot's hardware guide, of a table of ACT on LIBERO, and of ResNet-50.
The constants of `kata.plan.device_rates` were chosen with the guide's ACT scenarios and its step of
Diffusion on four H100 in view, and none for LIBERO, SmolVLA or ResNet-50. No GPU is needed. Each
policy is traced once, which takes ten to thirty seconds. Where one is named, its memory alone is
planned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models import resnet50, vgg16_bn

from kata.plan.catalogue import gpu_named
from kata.plan.data_size import DataSize
from kata.plan.device_rates import rates_of
from kata.plan.forecast import Forecast, Machine, forecast
from kata.plan.step_time import operation_s
from kata.plan.step_trace import Linear, TracedOperation
from kata.plan.trace_store import step_trace_of
from kata.plan.tracing.cuda_rules import cuda_rules
from kata.plan.tracing.fake_tensors import treated_as_real
from kata.plan.tracing.recorder import StepRecorder
from kata.policies import config_class
from kata.policies.wall_x.published import PUBLISHED
from kata.run import AcceleratorConfig, DatasetConfig, Run
from kata.run.batch_layout import share_out
from kata.spec import Feature, FeatureType

FRAMES = 45_000
"""The guide's dataset: 50 episodes of 30 s at 30 fps."""

MEMORY_GB = {
    "act": (2, 6),
    "vqbet": (2, 6),
    "tdmpc": (2, 6),
    "diffusion": (8, 14),
    "multi_task_dit": (8, 14),
    "smolvla": (10, 16),
    "pi0": (24, 40),
    "pi05": (24, 40),
    "pi0_fast": (24, 40),
    "xvla": (24, 40),
    "groot": (24, 40),
    "eo1": (24, 40),
    "wall_x": (24, 40),
}
"""Peak memory at batch 8 by group of policies."""

WALL_CLOCK_H = (
    ("rtx4090", 1, "act", 8, 0.5, 1.0),
    ("rtx3090", 1, "act", 8, 0.5, 1.0),
    ("rtx4090", 1, "diffusion", 8, 2.0, 4.0),
    ("rtx3090", 1, "diffusion", 8, 2.0, 4.0),
    ("l4", 1, "act", 8, 1.0, 2.0),
    ("a10g", 1, "act", 8, 1.0, 2.0),
    ("l4", 1, "smolvla", 4, 3.0, 6.0),
    ("a100-40gb", 1, "smolvla", 16, 1.0, 2.0),
    ("a100-40gb", 1, "pi0", 4, 4.0, 8.0),
    ("a100-40gb", 1, "pi05", 4, 4.0, 8.0),
    ("h100", 4, "diffusion", 32, 0.5, 1.0),
    ("h100", 4, "smolvla", 32, 1.0, 2.0),
    ("m1-max", 1, "act", 4, 6.0, 14.0),
    ("m3-max", 1, "act", 4, 6.0, 14.0),
)
"""GPU, number, policy, batch, hours for five epochs: the scenarios of policies that kata has."""

UPDATE_S = {"diffusion": 0.167, "smolvla": 0.312, "pi05": 2.548}
"""Measured on four H100 with batch 32; all of SmolVLA and π0.5 is trained."""

ALL_TRAINED = {"freeze_vision_encoder": False, "train_expert_only": False}
NARROW = {"dtype": "bfloat16", "gradient_checkpointing": True}
"""The guide's options of π0.5 on four H100. The other rows of π0 and π0.5 state none; in float32
their weights, gradients and means of AdamW alone take more than 40 GB.
"""
FITTED = {"resize_imgs_with_padding": (224, 224)}
"""X-VLA's usual frames; those of the guide would be cut into 301 tokens each."""
OPTIONS = {
    "wall_x": {"base_config": PUBLISHED},
    **dict.fromkeys(("pi0", "pi05", "pi0_fast"), NARROW),
    "xvla": FITTED,
    "eo1": {"gradient_checkpointing": True},
}

RECOMPUTED = ("wall_x",)
"""Policies without an option of their own for activation checkpointing: the run's is taken."""

SCALING = {2: 1.9, 4: 3.7, 8: 7.2}
"""Speedups on A100."""

LIBERO_SAMPLES_S = {"h100": 1200, "a100-80gb": 615, "l4": 183}
"""ACT, two cameras of 256x256, batch 160, augmentation on the GPU, the network as the bound."""

SMOLVLA_SAMPLES_S = (71, 89)
"""SmolVLA on an A100 with batch 64."""

RESNET_IMAGES_S = (
    ("a100-80gb", "no", 938),
    ("a100-80gb", "bf16", 2470),
    ("rtx3090", "bf16", 905),
    ("rtx4090", "bf16", 1301),
    ("m1-max", "no", 140),
)
"""ResNet-50 training at 224x224, batch 256, in TF32 and, with channels last, in half precision.

A100: NVIDIA's DeepLearningExamples. RTX: github.com/lambdal/deeplearning-benchmark. The A100 of the
latter reaches 64 % of the former, so its fastest GPUs wait for images; its H100 is left out.
M1 Max: github.com/tlkh/tf-metal-experiments, batch 128 in fp32, TensorFlow on Metal.
"""

VGG_IMAGES_S = (("m1-max", 45.5), ("m2-max", 72.3), ("rtx3090", 223.0), ("rtx4090", 284.0))
"""VGG-16 with batch norms, training at 224x224, batch 32, Adam, in fp32, in PyTorch, on Metal too.

github.com/rasbt/machine-learning-notes, benchmark/pytorch-m1-gpu: 1,406 steps in 16.49, 10.37, 3.36
and 2.64 minutes, with torch 2.0 on Macs. Two processes decode and resize images beside it, which
may be what binds the RTX 4090.
"""


def guide_run(
    policy: str,
    batch: int,
    ranks: int = 1,
    side: tuple[int, int] = (480, 640),
    options: Mapping[str, Any] | None = None,
    cameras: int = 2,
) -> Run:
    """Return a run of a policy on some cameras; tdmpc takes one square camera, vqbet one."""
    cameras, size = (1, (side[0], side[0])) if policy == "tdmpc" else (cameras, side)
    cameras = 1 if policy == "vqbet" else cameras
    options = {**OPTIONS.get(policy, {}), **(options or {})}
    inputs = {"observation.state": Feature(FeatureType.STATE, (14,))}
    for number in range(cameras):
        inputs[f"observation.images.camera{number}"] = Feature(FeatureType.VISUAL, (3, *size))
    config = config_class(policy)(
        input_features=inputs,
        output_features={"action": Feature(FeatureType.ACTION, (14,))},
        push_to_hub=False,
        **options,
    ).without_downloads()
    run = Run(
        dataset=DatasetConfig(repo_id="described/dataset"),
        policy=config,
        optimizer=config.optimizer_preset(),
        accelerator=AcceleratorConfig(),
        gradient_checkpointing=policy in RECOMPUTED,
        batch_size=batch,
    )
    return share_out(run, ranks, [], keep_micro=True)


def guide_forecast(run: Run, gpu: str) -> Forecast:
    """Return the forecast for the guide's dataset."""
    data = DataSize(FRAMES, 50, 30.0, None, is_described=True)
    machine = Machine(gpu=gpu_named(gpu), ranks=run.ranks)
    return forecast(run, step_trace_of(run), data, machine)


def memory_rows(only: str = "") -> list[dict[str, Any]]:
    """Return the peak memory of each policy, or of one, at batch 8 beside its group's range."""
    rows: list[dict[str, Any]] = []
    for policy, (low, high) in MEMORY_GB.items():
        if only not in ("", policy):
            continue
        found = guide_forecast(guide_run(policy, 8), "a100-80gb")
        rows.append(_row({"policy": policy}, found.memory.total_bytes / 1e9, low, high, "gb"))
    return rows


def wall_clock_rows() -> list[dict[str, Any]]:
    """Return the hours of five epochs beside the guide's ranges."""
    rows: list[dict[str, Any]] = []
    for gpu, ranks, policy, batch, low, high in WALL_CLOCK_H:
        options = ALL_TRAINED if policy == "smolvla" and ranks > 1 else None
        found = guide_forecast(guide_run(policy, batch, ranks, options=options), gpu)
        hours = found.wall_clock_s(5 * found.steps_per_epoch)[1] / 3600
        named = {"gpu": gpu, "gpus": ranks, "policy": policy, "batch": batch}
        rows.append(_row(named, hours, low, high, "h"))
    return rows


def update_rows() -> list[dict[str, Any]]:
    """Return the steps on four H100 beside the measured ones, within 30 %."""
    rows: list[dict[str, Any]] = []
    for policy, update_s in UPDATE_S.items():
        options = ALL_TRAINED if policy == "smolvla" else None
        found = guide_forecast(guide_run(policy, 32, 4, options=options), "h100").time.update_s
        named = {"policy": policy, "gpus": 4, "measured_s": update_s}
        rows.append(_row(named, found, 0.7 * update_s, 1.3 * update_s, "s"))
    return rows


def smolvla_rows() -> list[dict[str, Any]]:
    """Return the samples per second of SmolVLA's defaults on an A100 beside the measured range."""
    found = 64 / guide_forecast(guide_run("smolvla", 64), "a100-80gb").time.update_s
    return [_row({"gpu": "a100-80gb", "batch": 64}, found, *SMOLVLA_SAMPLES_S, "samples_s")]


def resnet_rows() -> list[dict[str, Any]]:
    """Return images per second of ResNet-50 beside the measured ones, within 10 %."""
    found: list[dict[str, Any]] = []
    for precision in ("no", "bf16"):
        half = precision != "no"
        layout = torch.channels_last if half else torch.contiguous_format
        model = partial(resnet50, weights=None)
        sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)
        traced = _classifier_operations(model, sgd, RESNET_BATCH, layout, precision)
        measured = [(gpu, rate) for gpu, kind, rate in RESNET_IMAGES_S if kind == precision]
        found += _image_rows(traced, RESNET_BATCH, precision, measured, 0.1)
    return found


def vgg_rows() -> list[dict[str, Any]]:
    """Return images per second of VGG-16 beside the measured ones, within 20 %."""
    adam = partial(torch.optim.Adam, lr=0.0005, foreach=True)
    model = partial(vgg16_bn, weights=None)
    traced = _classifier_operations(model, adam, VGG_BATCH, torch.contiguous_format, "no")
    return _image_rows(traced, VGG_BATCH, "no", VGG_IMAGES_S, 0.2)


RESNET_BATCH, VGG_BATCH = 256, 32


def _image_rows(
    traced: Sequence[TracedOperation],
    batch: int,
    precision: str,
    measured: Sequence[tuple[str, float]],
    share: float,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for gpu, rate in measured:
        rates = rates_of(gpu_named(gpu), precision, tf32=True)
        if precision != "no":
            rates = replace(rates, convolution_passes=1)  # channels last already
        taken_s = sum(operation_s(operation, batch, rates) for operation in traced)
        named = {"gpu": gpu, "precision": precision, "measured": rate}
        limits = ((1 - share) * rate, (1 + share) * rate)
        rows.append(_row(named, batch / taken_s, *limits, "images_s"))
    return rows


def _classifier_operations(
    build: Callable[[], torch.nn.Module],
    optimize: Callable[..., torch.optim.Optimizer],
    batch: int,
    layout: torch.memory_format,
    precision: str,
) -> list[TracedOperation]:
    """Trace a step of a classifier of images of 224x224."""
    half = precision != "no"
    with treated_as_real(), cuda_rules(), FakeTensorMode(allow_non_fake_inputs=True):
        model = build().train().to(memory_format=layout)
        optimizer = optimize(model.parameters())
        images = torch.zeros(batch, 3, 224, 224).to(memory_format=layout)
        labels = torch.zeros(batch, dtype=torch.int64)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        step()  # makes the optimizer's state
        with StepRecorder({"weights": list(model.parameters())}) as recorder:
            recorder.enter_phase("forward")
            step()
    found: list[TracedOperation] = []
    for op in recorder.recording.operations:
        counts = [Linear(count, 0) for count in (op.flops, op.read_bytes, op.written_bytes)]
        found.append(TracedOperation(op.name, op.kind, op.phase, op.dtype, op.launches, 1, *counts))
    return found


def scaling_rows() -> list[dict[str, Any]]:
    """Return the speedups on A100 beside the guide's, within 10 %."""
    one = guide_forecast(guide_run("act", 8), "a100-80gb").time.update_s
    rows: list[dict[str, Any]] = []
    for ranks, speedup in SCALING.items():
        several = guide_forecast(guide_run("act", 8, ranks), "a100-80gb").time.update_s
        found = ranks * one / several
        rows.append(_row({"gpus": ranks}, found, 0.9 * speedup, 1.1 * speedup, "x"))
    return rows


def libero_rows() -> list[dict[str, Any]]:
    """Return the samples per second of ACT on LIBERO beside the measured ones, within 50 %."""
    rows: list[dict[str, Any]] = []
    for gpu, rate in LIBERO_SAMPLES_S.items():
        run = guide_run("act", 160, side=(256, 256))
        found = 160 / guide_forecast(run, gpu).time.update_s
        rows.append(
            _row({"gpu": gpu, "measured": rate}, found, rate / 1.5, rate * 1.5, "samples_s")
        )
    return rows


def _row(named: dict[str, Any], value: float, low: float, high: float, unit: str) -> dict[str, Any]:
    # 1.002 h are the 60 minutes that the guide gives.
    within = "yes" if low <= float(f"{value:.2g}") <= high else "no"
    # The guide's figures deviate by half, as it says itself.
    if within == "no" and 0.5 * low <= value <= 1.5 * high:
        within = "within the guide's own 50 %"
    limits = {f"low_{unit}": round(low, 4), f"high_{unit}": round(high, 4)}
    return {**named, f"planned_{unit}": round(value, 4), **limits, "inside": within}


def main(path: Path, only: str = "") -> None:
    """Compute all rows, or the memory of one policy, print them, and write them."""
    rows = {"memory_at_batch_8": memory_rows(only)}
    if not only:
        rows |= {
            "five_epochs": wall_clock_rows(),
            "four_h100": update_rows(),
            "scaling_on_a100": scaling_rows(),
            "held_out_act_on_libero": libero_rows(),
            "held_out_smolvla": smolvla_rows(),
            "held_out_resnet50": resnet_rows(),
            "held_out_vgg16": vgg_rows(),
        }
    for name, each in rows.items():
        print(name)
        for row in each:
            print("  ", row)
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1] if sys.argv[1:] else "benchmarks/results/plan_guide_20261123.json")
    main(target, *sys.argv[2:])

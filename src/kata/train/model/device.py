"""The device of a rank, and its precision."""

from __future__ import annotations

import os

import torch

from kata.dist.world import World
from kata.errors import ConfigError
from kata.policies.device import choose_device


def rank_device(asked: str | None, world: World) -> torch.device:
    """Return this rank's device: on a machine with several GPUs the one of its local rank.

    Raises:
        PolicyError: the device is not present.
        ConfigError: ranks would share a GPU.
    """
    device = choose_device(asked)
    if world.size == 1 or device.type == "cpu":
        return device
    cards = torch.cuda.device_count() if device.type == "cuda" else 0
    if device != torch.device(device.type) or not cards:
        raise ConfigError(
            f"policy.device={device} on {world.size} ranks",
            rule="each rank has its own GPU; several ranks train on cuda or cpu",
            remedy="--policy.device=cuda, with the cards chosen by CUDA_VISIBLE_DEVICES",
        )
    index = 0 if cards == 1 and world.local_rank > 0 and _one_card_each() else world.local_rank
    if index >= cards:
        raise ConfigError(
            f"rank {world.rank} is number {world.local_rank} on its machine, which shows {cards} "
            "cards",
            rule="each rank has its own GPU",
            remedy=f"start {cards} ranks on that machine, or show it more cards "
            "(CUDA_VISIBLE_DEVICES)",
        )
    return torch.device("cuda", index)


def computes_beside(device: torch.device) -> bool:
    """Return True if the device computes while the host continues, as all except the CPU do."""
    return device.type != "cpu"


def _one_card_each() -> bool:
    """Return True if the launcher shows each rank only its GPU."""
    return "SLURM_PROCID" in os.environ


def check_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError if the device cannot compute in this precision."""
    if precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"accelerator.mixed_precision=fp16 on {device.type}",
            rule="fp16 needs a CUDA device",
            remedy="use bf16, or no",
        )
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            f"accelerator.mixed_precision=bf16 on {torch.cuda.get_device_name(device)}",
            rule="bf16 needs compute capability 8.0",
            remedy="use fp16, or no",
        )

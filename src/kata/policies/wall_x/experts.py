"""Layers of Qwen2.5-VL in which actions and words have different perceptrons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kata.nn.decoder import INITIAL_STD, GatedMLP
from kata.nn.qwen.text import QwenLayer, QwenText, TextSizes
from kata.policies.qwen.vlm_config import required, text_config
from kata.policies.rules import Rule, refuse_broken_rules


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of perceptrons: the numbers of a token that each reads and writes, and inner widths.

    The first is that of words, images and states, the second that of actions; nothing reads others.
    """

    reads: tuple[int, ...]
    inner: tuple[int, ...]


def expert_sizes(config: Mapping[str, Any]) -> ExpertSizes | None:
    """Return the sizes of experts; None for a model with one perceptron for all tokens.

    Raises:
        PolicyError: the config lacks a size, or has options that kata cannot compute.
    """
    text = text_config(config)
    width = int(required(text, "hidden_size"))
    refuse_broken_rules(_text_rules(text))
    if not text.get("mlp_moe"):
        return None
    number = int(text.get("num_experts", 4))
    experts: list[Mapping[str, Any]] = list(required(text, "experts"))[:number]
    reads = tuple(int(numbers) for numbers in text.get("dim_inputs", (1536, 1536)))[:number]
    refuse_broken_rules(_expert_rules(experts, reads, number, width))
    return ExpertSizes(reads, tuple(int(required(one, "intermediate_size")) for one in experts))


def _text_rules(text: Mapping[str, Any]) -> Iterator[Rule]:
    """Yield rules on options of the language model that change what it computes."""
    for name in ("attention_moe", "use_lora"):
        yield (
            bool(text.get(name)),
            f"a Wall-X with {name}={text.get(name)}",
            "attention is shared by all tokens, and adapters are kata's own",
            "a model without this option; --peft.method_type=LORA for adapters",
        )


def _expert_rules(
    experts: list[Mapping[str, Any]], reads: tuple[int, ...], number: int, width: int
) -> Iterator[Rule]:
    """Yield rules on the sizes of experts."""
    yield (
        number < 2 or len(experts) != number or len(reads) != number,
        f"a Wall-X with num_experts={number}, {len(experts)} experts and {len(reads)} dim_inputs",
        "two experts or more, each with its sizes",
        "copy the model's whole config.json",
    )
    for one, numbers in zip(experts, reads, strict=True):
        yield (
            int(one.get("hidden_size", numbers)) != numbers or numbers > width,
            f"an expert with hidden_size={one.get('hidden_size')} and dim_inputs={numbers}",
            f"both are equal, and at most {width}, the numbers of a token",
            "copy the model's whole config.json",
        )
        yield (
            one.get("hidden_act", "silu") != "silu",
            f"an expert with hidden_act={one.get('hidden_act')}",
            "published models have SwiGLU",
            "a model without this option",
        )


class _Experts(nn.Module):
    """Perceptrons by kind of token."""

    def __init__(self, sizes: ExpertSizes) -> None:
        super().__init__()
        self.reads = sizes.reads
        pairs = zip(sizes.reads, sizes.inner, strict=True)
        self.experts = nn.ModuleList(GatedMLP(width, inner) for width, inner in pairs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)

    def forward(self, x: Tensor, actions: int) -> Tensor:
        """(B, L, width) -> (B, L, width); the last `actions` tokens pass through the second."""
        words = x.shape[1] - actions
        parts: list[Tensor] = []
        for number, part in enumerate((x[:, :words], x[:, words:])):
            if part.shape[1]:
                read = self.reads[number]
                written = self.experts[number](part[..., :read])
                parts.append(nn.functional.pad(written, (0, x.shape[2] - read)))
        return torch.cat(parts, dim=1)


class RoutedLayer(QwenLayer):
    """A layer with experts. Its norms may be held in float32 beside narrower maps."""

    def __init__(self, sizes: TextSizes, experts: ExpertSizes | None) -> None:
        super().__init__(sizes.layer)
        if experts is not None:
            del self.mlp
            self.moe = _Experts(experts)
        self.has_experts = experts is not None

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return tokens after a norm, in the dtype of the linear maps."""
        wide = norm.get_parameter("weight").dtype
        return norm(x.to(wide)).to(x.dtype)

    def perceived(self, x: Tensor, actions: int) -> Tensor:
        """Return what the experts make of tokens; see `QwenLayer.perceived`."""
        return self.moe(x, actions) if self.has_experts else self.mlp(x)


class RoutedText(QwenText):
    """A language model with experts."""

    def __init__(self, sizes: TextSizes, experts: ExpertSizes | None) -> None:
        self.expert_sizes = experts
        super().__init__(sizes)

    def made_layers(self) -> list[QwenLayer]:
        """Return new layers."""
        return [RoutedLayer(self.sizes, self.expert_sizes) for _ in range(self.sizes.layers)]

    def action_experts(self) -> list[nn.Module]:
        """Return the perceptrons that words do not pass through."""
        found: list[nn.Module] = []
        for layer in self.layers:
            assert isinstance(layer, RoutedLayer)
            found += layer.moe.experts[1:] if layer.has_experts else []
        return found

    def unread(self) -> list[nn.Module]:
        """Return perceptrons whose results nothing reads: words of the last layer, and others."""
        found: list[nn.Module] = []
        for layer in self.layers:
            assert isinstance(layer, RoutedLayer)
            if layer.has_experts:
                found += layer.moe.experts[2:]
                found += layer.moe.experts[:1] if layer is self.layers[-1] else []
        return found

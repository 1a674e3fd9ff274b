"""Sizes of Florence-2's image encoder and text encoder. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
"""Names of functions between two linear maps, as config files have them."""


@dataclass(frozen=True)
class DavitStage:
    """A stage of the image encoder: a convolution that makes patches, and blocks after it.

    Attributes:
        inputs: channels that come in.
        width: channels that go out.
        depth: number of blocks.
        heads: of attention within windows.
        groups: of attention among channels.
        patch: side of the convolution's kernel.
        stride: of the convolution.
        padding: around its input.
        norm_first: True if the norm is before the convolution.
    """

    inputs: int
    width: int
    depth: int
    heads: int
    groups: int
    patch: int
    stride: int
    padding: int
    norm_first: bool

    def cells(self, side: int) -> int:
        """Return how many cells a side of `side` cells or pixels has after the convolution."""
        return (side + 2 * self.padding - self.patch) // self.stride + 1


@dataclass(frozen=True)
class DavitSizes:
    """Sizes of the image encoder and of the projector after it.

    Attributes:
        stages: from the pixels on.
        window: side of a window of attention, in cells.
        mlp_ratio: width of a perceptron as a multiple of its stage's width.
        drop_path: share of residual branches that the last block drops in training.
        qkv_bias: True if the maps of attention have biases.
        activation: one of ACTIVATIONS.
        projected: width of image tokens.
        positions: cells along a side that have learned positions.
        frames: frames of a video that have positions.
        std: spread of new weights.
    """

    stages: tuple[DavitStage, ...]
    window: int
    mlp_ratio: float
    drop_path: float
    qkv_bias: bool
    activation: str
    projected: int
    positions: int
    frames: int
    std: float

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of cells of an image of this height and width in pixels."""
        for stage in self.stages:
            height, width = stage.cells(height), stage.cells(width)
        return height, width


@dataclass(frozen=True)
class BartSizes:
    """Sizes of the text encoder.

    Attributes:
        width: of a token.
        layers: their number.
        heads: of attention.
        mlp: inner width of the perceptrons.
        vocabulary: number of tokens.
        positions: longest sequence.
        pad: token of padding, whose embedding is not trained.
        scales: True if embeddings are multiplied by the root of the width.
        activation: one of ACTIVATIONS.
        dropout: of what enters a residual connection.
        attention_dropout: of the weights of attention.
        activation_dropout: inside the perceptrons.
        std: spread of new weights.
    """

    width: int
    layers: int
    heads: int
    mlp: int
    vocabulary: int
    positions: int
    pad: int
    scales: bool
    activation: str
    dropout: float
    attention_dropout: float
    activation_dropout: float
    std: float

"""ResNets under the names of transformers, and their folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kata.errors import CheckpointError, PolicyError
from kata.files import write_json
from kata.processors.tensors import read_tensors, write_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BOTTLENECK = "bottleneck"
_WIDER = 4  # channels of a bottleneck's end for each of its middle


@dataclass(frozen=True)
class ResNetShape:
    """The shape of a ResNet, by the names of its config in transformers.

    Attributes:
        num_channels: of the picture.
        embedding_size: channels after the first convolution.
        hidden_sizes: channels of each stage.
        depths: blocks of each stage.
        layer_type: "basic" or "bottleneck".
        hidden_act: activation; "relu" alone.
        downsample_in_first_stage: True halves the map in the first stage, too.
        downsample_in_bottleneck: True strides in the first convolution of a bottleneck.
    """

    num_channels: int = 3
    embedding_size: int = 32
    hidden_sizes: Sequence[int] = (32, 64, 128, 256)
    depths: Sequence[int] = (1, 1, 1, 1)
    layer_type: str = "basic"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    @staticmethod
    def read(folder: Path) -> ResNetShape:
        """Return the shape that a folder's config.json names.

        Raises:
            CheckpointError: it cannot be read.
            PolicyError: it is no ResNet.
        """
        path = folder / CONFIG
        try:
            raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error})",
                rule="the folder of a ResNet in the format of transformers",
                remedy="name such a folder with --reward_model.model_name, or leave it out",
            ) from error
        found = {f.name: raw[f.name] for f in fields(ResNetShape) if f.name in raw}
        shape = ResNetShape(**found)
        if raw.get("model_type") != "resnet" or shape.hidden_act != "relu":
            raise PolicyError(
                f"{path}: model_type={raw.get('model_type')}, hidden_act={shape.hidden_act}",
                rule="a ResNet of transformers with ReLU; code of other models is not run",
                remedy="microsoft/resnet-18, for example, downloaded into a folder; or leave "
                "--reward_model.model_name out",
            )
        return shape

    def save(self, folder: Path) -> None:
        """Write config.json for transformers."""
        kind = {"model_type": "resnet", "architectures": ["ResNetModel"]}
        plain = {**asdict(self), "hidden_sizes": list(self.hidden_sizes)}
        write_json(folder / CONFIG, {**kind, **plain, "depths": list(self.depths)})


class ResNet(nn.Module):
    """A ResNet without its head, under the names of transformers' ResNetModel."""

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        self.channels = shape.hidden_sizes[-1]
        first = _convolution(shape.num_channels, shape.embedding_size, 7, 2)
        self.embedder = nn.ModuleDict({"embedder": first})
        self.encoder = nn.ModuleDict({"stages": nn.ModuleList(_stages(shape))})
        self._pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the last feature maps (B, C, H, W) of frames (B, 3, H, W)."""
        maps = self._pool(self.embedder["embedder"](frames).relu())
        for stage in self.encoder["stages"].children():
            maps = stage(maps)
        return maps


class _Convolved(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
        self.normalization = nn.BatchNorm2d(out)

    def forward(self, maps: Tensor) -> Tensor:
        return self.normalization(self.convolution(maps))


class _Block(nn.Module):
    """Convolutions beside a shortcut."""

    def __init__(self, channels: int, convolutions: list[nn.Module], out: int, stride: int) -> None:
        super().__init__()
        is_same = channels == out and stride == 1
        self.shortcut = nn.Identity() if is_same else _convolution(channels, out, 1, stride)
        self.layer = nn.ModuleList(convolutions)

    def forward(self, maps: Tensor) -> Tensor:
        short = self.shortcut(maps)
        for number, layer in enumerate(self.layer, 1):
            maps = layer(maps)
            maps = maps if number == len(self.layer) else maps.relu()
        return (maps + short).relu()


class _Stage(nn.Module):
    """Blocks in a row."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*blocks)

    def forward(self, maps: Tensor) -> Tensor:
        return self.layers(maps)


def _convolution(channels: int, out: int, kernel: int, stride: int) -> nn.Module:
    return _Convolved(channels, out, kernel, stride)


def _stages(shape: ResNetShape) -> list[nn.Module]:
    stages: list[nn.Module] = []
    channels = shape.embedding_size
    for number, (out, depth) in enumerate(zip(shape.hidden_sizes, shape.depths, strict=True)):
        blocks: list[nn.Module] = []
        for place in range(depth):
            halves = place == 0 and (number > 0 or shape.downsample_in_first_stage)
            blocks.append(_block(shape, channels, out, 2 if halves else 1))
            channels = out
        stages.append(_Stage(blocks))
    return stages


def _block(shape: ResNetShape, channels: int, out: int, stride: int) -> nn.Module:
    if shape.layer_type != BOTTLENECK:
        plain = [_convolution(channels, out, 3, stride), _convolution(out, out, 3, 1)]
        return _Block(channels, plain, out, stride)
    middle, early = out // _WIDER, stride if shape.downsample_in_bottleneck else 1
    narrow = [
        _convolution(channels, middle, 1, early),
        _convolution(middle, middle, 3, stride // early),
        _convolution(middle, out, 1, 1),
    ]
    return _Block(channels, narrow, out, stride)


def fill_resnet(net: ResNet, folder: Path) -> None:
    """Fill a ResNet from a folder of transformers; a head in it is left out.

    Raises:
        CheckpointError: the file cannot be read, or its tensors are others.
    """
    found = read_tensors(folder / WEIGHTS)
    named = {name.removeprefix("resnet."): tensor for name, tensor in found.items()}
    own = net.state_dict()
    odd = [k for k, mine in own.items() if k not in named or named[k].shape != mine.shape]
    if odd:
        raise CheckpointError(
            f"{folder / WEIGHTS}: {len(odd)} tensors absent or of another shape, such as {odd[0]}",
            rule="the tensors of the ResNet that config.json beside it names",
            remedy="download the folder again",
        )
    net.load_state_dict({name: named[name] for name in own})


def save_resnet(net: ResNet, shape: ResNetShape, folder: Path) -> None:
    """Write a ResNet as transformers reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    shape.save(folder)
    write_tensors(folder / WEIGHTS, net.state_dict())

"""Files that the guests' check needs and cannot download.

They are a plugin package with a policy for LeRobot, and a vision-language model of a few thousand
weights for EVO1.
"""

from __future__ import annotations

import json
from pathlib import Path

CONFIGURATION = """
from dataclasses import dataclass, field

import torch
from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim.optimizers import OptimizerConfig
from lerobot.optim.schedulers import CosineAnnealingWithWarmupSchedulerConfig


@OptimizerConfig.register_subclass("toy-adamw")
@dataclass
class ToyAdamW(OptimizerConfig):
    lr: float = 1e-3
    weight_decay: float = 0.01
    grad_clip_norm: float = 1.0
    head_scale: float = 0.1

    def build(self, params):
        groups = [
            {"params": [p for name, p in params.items() if "head" not in name]},
            {"params": [p for name, p in params.items() if "head" in name],
             "lr": self.lr * self.head_scale},
        ]
        return torch.optim.AdamW(groups, lr=self.lr, weight_decay=self.weight_decay)


@PreTrainedConfig.register_subclass("toy")
@dataclass
class ToyConfig(PreTrainedConfig):
    chunk_size: int = 4
    width: int = 16  # Width of the hidden layer.
    blur: float | None = 0.1
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "STATE": NormalizationMode.MEAN_STD, "ACTION": NormalizationMode.MIN_MAX,
            "VISUAL": NormalizationMode.IDENTITY,
        }
    )

    def validate_features(self):
        if self.robot_state_feature is None:
            raise ValueError("toy reads observation.state, and there is none")

    def get_optimizer_preset(self):
        return ToyAdamW()

    def get_scheduler_preset(self):
        return CosineAnnealingWithWarmupSchedulerConfig(num_warmup_steps=1)

    @property
    def observation_delta_indices(self):
        return None

    @property
    def action_delta_indices(self):
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self):
        return None
"""
MODELING = """
import random
from collections import deque

import numpy as np
import torch
from lerobot.policies import PreTrainedPolicy
from torch import nn

from .configuration_toy import ToyConfig


class ToyPolicy(PreTrainedPolicy):
    config_class = ToyConfig
    name = "toy"

    def __init__(self, config, **kwargs):
        super().__init__(config)
        config.validate_features()
        numbers = config.chunk_size * config.action_feature.shape[0]
        self.enter = nn.Linear(config.robot_state_feature.shape[0], config.width)
        self.tied = nn.Linear(config.width, config.width)
        self.again = nn.Linear(config.width, config.width)
        self.again.weight = self.tied.weight
        self.head = nn.Linear(config.width, numbers)
        self.register_buffer("updates", torch.zeros(()))
        self.reset()

    def get_optim_params(self):
        return dict(self.named_parameters())

    def reset(self):
        self._queue = deque()

    def update(self):
        self.updates += 1

    def _predict(self, state):
        hidden = torch.relu(self.again(torch.relu(self.tied(torch.relu(self.enter(state))))))
        return self.head(hidden).unflatten(1, (self.config.chunk_size, -1))

    def forward(self, batch, reduction="mean"):
        state, action = batch["observation.state"], batch["action"]
        shift = 0.01 * (random.random() + np.random.rand())
        noise = 0.1 * torch.randn_like(action) + shift
        error = (self._predict(state) + noise - action).square()
        error = error * ~batch["action_is_pad"][..., None]
        each = error.mean((1, 2))
        return (each if reduction == "none" else each.mean()), {"shift": float(shift)}

    @torch.no_grad()
    def predict_action_chunk(self, batch, **kwargs):
        return self._predict(batch["observation.state"])

    @torch.no_grad()
    def select_action(self, batch, **kwargs):
        self.eval()
        if not self._queue:
            self._queue.extend(self.predict_action_chunk(batch).transpose(0, 1))
        return self._queue.popleft()
"""
PROCESSOR = '''
from dataclasses import dataclass

import torch
from lerobot.processor import (
    AddBatchDimensionProcessorStep, DeviceProcessorStep, NormalizerProcessorStep,
    ObservationProcessorStep, PolicyProcessorPipeline, ProcessorStepRegistry,
    RenameObservationsProcessorStep, UnnormalizerProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action


@dataclass
@ProcessorStepRegistry.register(name="toy_jitter_processor")
class ToyJitter(ObservationProcessorStep):
    """Random numbers in a processor: a resumed run has to draw the same."""

    size: float = 0.01

    def observation(self, observation):
        state = observation["observation.state"]
        return {**observation, "observation.state": state + self.size * torch.randn_like(state)}

    def get_config(self):
        return {"size": self.size}

    def transform_features(self, features):
        return features


def make_toy_pre_post_processors(config, dataset_stats=None):
    features = {**config.input_features, **config.output_features}
    before = [
        RenameObservationsProcessorStep(rename_map={}), AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
        NormalizerProcessorStep(
            features=features, norm_map=config.normalization_mapping, stats=dataset_stats
        ),
        ToyJitter(),
    ]
    after = [
        UnnormalizerProcessorStep(
            features=config.output_features, norm_map=config.normalization_mapping,
            stats=dataset_stats,
        ),
        DeviceProcessorStep(device="cpu"),
    ]
    return (
        PolicyProcessorPipeline(steps=before, name="policy_preprocessor"),
        PolicyProcessorPipeline(
            steps=after, name="policy_postprocessor", to_transition=policy_action_to_transition,
            to_output=transition_to_policy_action,
        ),
    )
'''


def toy_package(site: Path) -> None:
    """Write the package lerobot_policy_toy, with the record that makes it an installed one."""
    package, record = site / "lerobot_policy_toy", site / "lerobot_policy_toy-1.0.dist-info"
    for folder in (package, record):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from .configuration_toy import ToyConfig\n"
        "from .processor_toy import make_toy_pre_post_processors\n"
    )
    (package / "configuration_toy.py").write_text(CONFIGURATION)
    (package / "modeling_toy.py").write_text(MODELING)
    (package / "processor_toy.py").write_text(PROCESSOR)
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lerobot_policy_toy\nVersion: 1.0\n"
    )


def tiny_internvl(folder: Path) -> Path:
    """Write an InternVL3 of random weights for frames of 28 pixels, and return its folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    folder.mkdir(parents=True)
    image, begin, end, pad = "<IMG_CONTEXT>", "<img>", "</img>", "<pad>"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[pad, image, begin, end],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["reach the target"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "image_size": [28, 28], "patch_size": [7, 7],
    }  # fmt: skip
    text = {
        "model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 300,
    }  # fmt: skip
    config = InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.token_to_id(image) or 0,
        image_seq_length=4,
    )
    torch.manual_seed(0)
    InternVLForConditionalGeneration(config).save_pretrained(folder)
    return folder

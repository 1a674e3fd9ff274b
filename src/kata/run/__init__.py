"""What the user asks for, as plain values: options, their defaults, and how flags and files become one Run."""

from kata.run.dataset import DatasetConfig
from kata.run.evaluation import EnvConfig, EvalConfig
from kata.run.fsdp import FsdpConfig
from kata.run.mix import MixEntry
from kata.run.options import AcceleratorConfig, AccumulationConfig, Run
from kata.run.parallel import DdpConfig
from kata.run.resolve import policy_folder, read_policy_config, resolve_run
from kata.run.tracking import TensorboardConfig, TrackioConfig, WandbConfig
from kata.run.zero import DeepSpeedConfig

__all__ = [
    "AcceleratorConfig",
    "AccumulationConfig",
    "DatasetConfig",
    "DdpConfig",
    "DeepSpeedConfig",
    "EnvConfig",
    "EvalConfig",
    "FsdpConfig",
    "MixEntry",
    "Run",
    "TensorboardConfig",
    "TrackioConfig",
    "WandbConfig",
    "policy_folder",
    "read_policy_config",
    "resolve_run",
]

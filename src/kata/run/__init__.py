"""The options of a run as plain values, and the way from flags and files to one Run."""

from kata.run.config import AcceleratorConfig, AccumulationConfig, Run
from kata.run.dataset import DatasetConfig, MixEntry
from kata.run.evaluation import EnvConfig, EvalConfig
from kata.run.parallel import DdpConfig, DeepSpeedConfig, FsdpConfig
from kata.run.resolve import given_names, memory_to_fit, resolve_run
from kata.run.saved_policy import policy_folder, read_policy_config
from kata.run.tracking import TensorboardConfig, TrackioConfig, WandbConfig

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
    "given_names",
    "memory_to_fit",
    "policy_folder",
    "read_policy_config",
    "resolve_run",
]

"""Between recorded values and what a policy computes with: one list of steps for training and for acting."""

from kata.adapt.each import PerDataset
from kata.adapt.frames import frames_to_float, planes_to_rgb
from kata.adapt.pipeline import Pipeline, load_pipeline
from kata.adapt.steps import AddBatchAxis, Normalize, Rename, Step, ToDevice, Unnormalize
from kata.adapt.tokens import Tokenize

__all__ = [
    "AddBatchAxis",
    "Normalize",
    "PerDataset",
    "Pipeline",
    "Rename",
    "Step",
    "ToDevice",
    "Tokenize",
    "Unnormalize",
    "frames_to_float",
    "load_pipeline",
    "planes_to_rgb",
]

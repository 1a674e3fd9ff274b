"""Pre- and postprocessing of a policy: one list of steps for training and for acting."""

from kata.processors.action_tokens import ActionTokens
from kata.processors.image_frames import frames_to_float, planes_to_rgb
from kata.processors.per_dataset_normalize import PerDataset
from kata.processors.pipeline import Pipeline, load_pipeline
from kata.processors.qwen.action_words import WriteActionWords
from kata.processors.qwen.eo1 import Eo1Prompt, Eo1Tokens
from kata.processors.qwen.wall_x import WallXTask
from kata.processors.relative_actions import AbsoluteActions, RelativeActions
from kata.processors.state_prompt import FastStatePrompt, StatePrompt
from kata.processors.steps import AddBatchAxis, Normalize, Rename, Step, ToDevice, Unnormalize
from kata.processors.tokenize import EndWithNewline, Tokenize
from kata.processors.xvla import AddDomainId, ImagenetNormalize, ImageToFloat

__all__ = [
    "AbsoluteActions",
    "ActionTokens",
    "AddBatchAxis",
    "AddDomainId",
    "EndWithNewline",
    "Eo1Prompt",
    "Eo1Tokens",
    "FastStatePrompt",
    "ImageToFloat",
    "ImagenetNormalize",
    "Normalize",
    "PerDataset",
    "Pipeline",
    "RelativeActions",
    "Rename",
    "StatePrompt",
    "Step",
    "ToDevice",
    "Tokenize",
    "Unnormalize",
    "WallXTask",
    "WriteActionWords",
    "frames_to_float",
    "load_pipeline",
    "planes_to_rgb",
]

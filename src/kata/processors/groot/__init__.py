"""Steps of GR00T's pipelines, under LeRobot's names and with its options."""

from kata.processors.groot.decode import DecodeGroups, Unpack
from kata.processors.groot.encode import EncodePrompt
from kata.processors.groot.pack import PackInputs
from kata.processors.groot.removed import RemovedStep

__all__ = ["DecodeGroups", "EncodePrompt", "PackInputs", "RemovedStep", "Unpack"]

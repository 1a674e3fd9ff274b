"""ACT's tensor names against LeRobot's."""

from __future__ import annotations

from kata.policies.base import KeyMap

KEY_MAP = KeyMap()
"""The modules bear LeRobot's names, so that each tensor keeps its own; nothing is tied or left
unused.
"""

"""Diffusion's tensors bear LeRobot's names; a compiled U-Net puts a prefix before its own."""

from __future__ import annotations

from kata.policies.base import KeyMap

PLAIN = KeyMap()

COMPILED = KeyMap(prefixes=(("diffusion.unet.", "diffusion.unet._orig_mod."),))

"""The built-in task: an arm on a board moves its tool to a target that only its cameras show."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kata.errors import ConfigError, PolicyError
from kata.eval.envs.reach.picture import GOAL_RADIUS, Picture, SceneCamera

FPS = 10
MAX_STEPS = 80
HOLD_STEPS = 8
INSTRUCTION = "move the tool to the green target"
SENTENCES = {"green": INSTRUCTION, "blue": "move the tool to the blue target"}
"""The sentence for each target, by its color."""
CAMERAS = ("top", "wrist")
PLACE_NAMES = ("tool.x", "tool.y")
WAY_NAMES = ("way.x", "way.y")
"""Names of the numbers of a place, which the state is and absolute actions are, and of a relative
action.
"""
SIZE = 64
"""Pixels of a side of the cameras' pictures, unless others are asked for."""
SMALLEST = 16
LARGEST = 512

_STARTS = np.array([[-0.9, 0.9], [-0.9, -0.6]])
_GOALS = np.array([[-0.8, 0.8], [-0.3, 0.8]])
_APART = 0.5
"""Least distance between two targets."""
_GAIN, _MAX_STEP = (
    0.5,
    0.1,
)  # the arm closes half of the way to its target in a step, at most 0.1 units
WAY = _MAX_STEP / _GAIN
"""Board units of a relative action of 1: the way ahead at which the arm is as fast as it can be."""

Observation = dict[str, Any]


class ReachEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Move the tool onto the target and stay there for most of a second.

    Observation: `agent_pos` float32 (2,), where the tool is; `pixels` with `top` (the board) and
    `wrist` (what lies around the tool), uint8 (64, 64, 3). The position says nothing about the
    target. Action: float32 (2,), where the tool shall go, board units in [-1, 1]; with `relative`
    the way to there from where the tool is, in [-1, 1] for at most 0.2 units. Reward: 1 in
    every step on the target. Success: the tool's centre on the target in 8 steps in a row, which
    ends the episode; it has 80 steps.

    Args:
        render_mode: 'rgb_array', or None.
        render_size: pixels of a side of what `render` returns.
        picture: pixels of a side of the cameras' pictures. They are drawn in this size.
        relative: True takes actions as ways, not as places.

    Raises:
        ConfigError: pictures of this size cannot be drawn.
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
    }
    task = INSTRUCTION

    def __init__(
        self,
        render_mode: str | None = None,
        render_size: int = 256,
        picture: int = SIZE,
        relative: bool = False,
    ) -> None:
        if not SMALLEST <= picture <= LARGEST:
            raise ConfigError(
                f"picture={picture}",
                rule=f"{SMALLEST} to {LARGEST} pixels of a side",
                remedy="for example --env.kwargs='{\"picture\": 40}', or leave it out",
            )
        self.render_mode = render_mode
        self.relative = relative
        frame = spaces.Box(0, 255, (picture, picture, 3), np.uint8)
        pixels = spaces.Dict(dict.fromkeys(CAMERAS, frame))
        place = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"agent_pos": place, "pixels": pixels})
        self.action_space = place
        self._top = SceneCamera(picture, 1.1)
        self._wrist = SceneCamera(picture, 0.4)
        self._large = SceneCamera(render_size, 1.1)
        self.tool, self.goal = np.zeros(2), np.zeros(2)
        self._held = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new start and a new target; the same seed gives the same pair."""
        super().reset(seed=seed, options=options)
        self.tool = self.np_random.uniform(_STARTS[:, 0], _STARTS[:, 1])
        self._place_targets()
        self._held = self._steps = 0
        return self._observe(), {"is_success": False}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One tenth of a second towards `action`; targets outside the board count as its edge."""
        target = np.asarray(action, dtype=np.float64)
        if target.shape != (2,) or not np.isfinite(target).all():
            raise PolicyError(
                f"action is {action!r}",
                rule="two finite numbers",
                remedy="check the policy's output",
            )
        target = np.clip(target, -1, 1)
        if self.relative:
            target = np.clip(self.tool + WAY * target, -1, 1)
        move = _GAIN * (target - self.tool)
        length = float(np.hypot(*move))
        self.tool = self.tool + move * min(1.0, _MAX_STEP / max(length, 1e-9))
        self._steps += 1
        self._held = self._held + 1 if self.on_target else 0
        success = self._held >= HOLD_STEPS
        return (
            self._observe(),
            float(self.on_target),
            success,
            self._steps >= MAX_STEPS,
            {"is_success": success},
        )

    @property
    def action_names(self) -> tuple[str, ...]:
        """Return what the numbers of an action are."""
        return WAY_NAMES if self.relative else PLACE_NAMES

    def action_towards(self, place: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the action for a place, (2,) in board units."""
        action = (place - self.tool) / WAY if self.relative else place
        return np.clip(action, -1, 1).astype(np.float32)

    @property
    def on_target(self) -> bool:
        """True while the tool's centre lies on the target."""
        return bool(np.hypot(*(self.tool - self.goal)) <= GOAL_RADIUS)

    def render(self) -> Picture | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The board as a larger picture, uint8 (256, 256, 3)."""
        return self._seen_by(self._large, np.zeros(2)) if self.render_mode == "rgb_array" else None

    def _observe(self) -> Observation:
        pixels = {
            "top": self._seen_by(self._top, np.zeros(2)),
            "wrist": self._seen_by(self._wrist, self.tool),
        }
        return {"agent_pos": self.tool.astype(np.float32), "pixels": pixels}

    def _place_targets(self) -> None:
        self.goal = self.np_random.uniform(_GOALS[:, 0], _GOALS[:, 1])

    def _seen_by(self, camera: SceneCamera, middle: NDArray[np.float64]) -> Picture:
        return camera.look(middle, self.tool, self.goal)


class ReachOneOfTwoEnv(ReachEnv):
    """The same with a green and a blue target, of which `target` is to be reached.

    Pictures show both alike: only a sentence tells which one counts. Success is that of the target
    that is to be reached.
    """

    def __init__(
        self,
        render_mode: str | None = None,
        render_size: int = 256,
        picture: int = SIZE,
        target: str = "green",
        relative: bool = False,
    ) -> None:
        if target not in SENTENCES:
            raise ConfigError(
                f"target={target}",
                rule=f"one of: {', '.join(SENTENCES)}",
                remedy='for example --env.kwargs=\'{"target": "blue"}\'',
            )
        super().__init__(render_mode, render_size, picture, relative)
        self.target = target
        self.task = SENTENCES[target]
        self.places = dict.fromkeys(SENTENCES, np.zeros(2))

    def _place_targets(self) -> None:
        # The places do not depend on which target counts.
        green = self.np_random.uniform(_GOALS[:, 0], _GOALS[:, 1])
        blue = green
        while np.hypot(*(blue - green)) < _APART:
            blue = self.np_random.uniform(_GOALS[:, 0], _GOALS[:, 1])
        self.places = {"green": green, "blue": blue}
        self.goal = self.places[self.target]

    def _seen_by(self, camera: SceneCamera, middle: NDArray[np.float64]) -> Picture:
        return camera.look(middle, self.tool, self.places["green"], self.places["blue"])

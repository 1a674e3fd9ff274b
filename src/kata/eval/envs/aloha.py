"""The two-armed ALOHA tasks of gym-aloha: `gymnasium.make("kata/AlohaTransferCube-v0")`, also
AlohaInsertion.

Physics, rewards and start poses are gym-aloha's (extra `aloha`): a seed starts where it starts
there, so success rates compare. Three things differ. Only the camera that is shown is rendered
(gym-aloha renders three, which takes three times as long); the start pose can be given; and without
a seed it follows from the last seed. On Linux without a display MuJoCo renders through EGL (without
a GPU: Mesa's libegl1 and libgl1-mesa-dri); MUJOCO_GL=osmesa (libosmesa6) works too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kata.errors import ConfigError, PolicyError, did_you_mean

if sys.platform == "linux" and "DISPLAY" not in os.environ:
    os.environ.setdefault(
        "MUJOCO_GL", "egl"
    )  # MuJoCo would look for a display, and say nothing useful
_simulator = importlib.import_module("gym_aloha.env")
_sampling = importlib.import_module("gym_aloha.utils")
_start: list[Any] = importlib.import_module(
    "gym_aloha.tasks.sim"
).BOX_POSE  # where gym-aloha looks for the pose

FPS = 50
MAX_STEPS = 400
CAMERA = "top"
SHAPE = (480, 640, 3)
_ARM = (
    "waist",
    "shoulder",
    "elbow",
    "forearm_roll",
    "wrist_angle",
    "wrist_rotate",
    "gripper",
)
JOINTS = (*(f"left_{joint}" for joint in _ARM), *(f"right_{joint}" for joint in _ARM))
SUCCESS_REWARD = 4

Observation = dict[str, Any]


class Task(NamedTuple):
    """One of gym-aloha's tasks.

    draw: a start pose of its objects for a seed, float64 (7 per object,).
    """

    instruction: str
    draw: Callable[[int], NDArray[np.float64]]
    objects: int


TASKS = {
    "transfer_cube": Task(
        "Pick up the cube with the right arm and transfer it to the left arm.",
        _sampling.sample_box_pose,
        1,
    ),
    "insertion": Task(
        "Insert the peg into the socket.",
        lambda seed: np.concatenate(_sampling.sample_insertion_pose(seed)),
        2,
    ),
}


def task_of(name: str) -> Task:
    """The task of that name; ConfigError for another."""
    if name not in TASKS:
        raise ConfigError(
            f"task {name}", rule=f"one of {', '.join(TASKS)}", remedy=did_you_mean(name, TASKS)
        )
    return TASKS[name]


class AlohaEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Two arms at a table, seen from above, at 50 steps per second.

    Observation: `agent_pos` float32 (14,), joint angles in rad and grippers from 0 closed to 1
    open, left arm first; `pixels` with `top`, uint8 (480, 640, 3); not with `pictures=False`, which
    saves nine tenths of the time. Action: float32 (14,), where the joints and grippers shall go;
    the simulation keeps them within their limits. Reward: the stage that is reached, 0 to 4
    (transfer: touched, lifted, in the left gripper, held by it in the air). Success: stage 4, which
    ends the episode; steps after it are possible.
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["rgb_array"],
        "render_fps": FPS,
    }

    def __init__(
        self, task: str = "transfer_cube", render_mode: str | None = None, *, pictures: bool = True
    ) -> None:
        self._task, self._pictures = task_of(task), pictures
        self.task, self.render_mode = self._task.instruction, render_mode
        self.action_space = spaces.Box(-np.inf, np.inf, (len(JOINTS),), np.float32)
        seen: dict[str, spaces.Space[Any]] = {"agent_pos": self.action_space}
        if pictures:
            seen["pixels"] = spaces.Dict({CAMERA: spaces.Box(0, 255, SHAPE, np.uint8)})
        self.observation_space = spaces.Dict(seen)
        self._sim: Any = _simulator.AlohaEnv(task=task, obs_type="pixels_agent_pos")._env
        self._sim.task.get_observation = self._look
        self._picture: NDArray[np.uint8] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Arms at rest and the objects at a drawn pose, or at `options["state"]`: per object x, y,
        z and a quaternion.

        Raises: ConfigError for a state of another size.
        """
        super().reset(seed=seed)
        state = (options or {}).get("state")
        if state is None:
            pose = self._task.draw(int(self.np_random.integers(2**31)) if seed is None else seed)
        else:
            pose = _pose(state, 7 * self._task.objects)
        before, _start[0] = _start[0], pose
        try:
            seen: Observation = self._sim.reset().observation
        finally:
            _start[0] = before
        return seen, {"is_success": False}

    def step(
        self, action: NDArray[np.floating[Any]]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One fiftieth of a second towards `action`."""
        target = np.asarray(action, dtype=np.float64)
        if target.shape != (len(JOINTS),) or not np.isfinite(target).all():
            raise PolicyError(
                f"action is {action!r}",
                rule="14 finite numbers",
                remedy="check the policy's output",
            )
        after = self._sim.step(target)
        success = after.reward == SUCCESS_REWARD
        return after.observation, float(after.reward), success, False, {"is_success": success}

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the camera's frame, uint8 (480, 640, 3)."""
        if self.render_mode != "rgb_array":
            return None
        if self._picture is None:
            self._picture = self._shoot(self._sim.physics)
        return self._picture

    def close(self) -> None:
        """Let go of the renderer here: left to the garbage collector, it goes in whichever
        thread, and OpenGL fails.
        """
        self._sim.physics.free()

    def _look(self, physics: Any) -> Observation:
        joints = self._sim.task.get_qpos(physics).astype(np.float32)
        self._picture = self._shoot(physics) if self._pictures else None
        return (
            {"agent_pos": joints, "pixels": {CAMERA: self._picture}}
            if self._pictures
            else {"agent_pos": joints}
        )

    def _shoot(self, physics: Any) -> NDArray[np.uint8]:
        return physics.render(height=SHAPE[0], width=SHAPE[1], camera_id=CAMERA)


def _pose(state: Any, size: int) -> NDArray[np.float64]:
    pose = np.asarray(state, dtype=np.float64)
    if pose.shape != (size,) or not np.isfinite(pose).all():
        raise ConfigError(
            f"state {state}",
            rule=f"{size} finite numbers: x, y, z and a quaternion per object",
            remedy="leave it out for a drawn one",
        )
    return pose


def register_aloha() -> None:
    """Make the tasks known to gymnasium; a second call changes nothing."""
    for name, task in (("AlohaTransferCube", "transfer_cube"), ("AlohaInsertion", "insertion")):
        if f"kata/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"kata/{name}-v0",
                entry_point="kata.eval.envs.aloha:AlohaEnv",
                max_episode_steps=MAX_STEPS,
                kwargs={"task": task},
            )


register_aloha()

"""The options of `kata eval`, with LeRobot's names, and of recording. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kata.config import DEVICE, REQUIRED, Options, assign, decode, option, parse_flags, read_config
from kata.errors import ConfigError
from kata.policies.rtc import RtcChanges
from kata.run import EnvConfig, EvalConfig

SEED_MAX = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class PolicyChoice(Options):
    """The policy that acts, and its device."""

    at: ClassVar[str] = "policy."

    path: str = option(
        REQUIRED, "Checkpoint, run folder or Hub name of the policy.", is_common=True
    )
    device: str | None = option(
        None,
        "Device to compute on. null takes the best one here: cuda, then mps, then cpu.",
        form=DEVICE,
        is_common=True,
    )
    pretrained_revision: str | None = option(None, "Branch, tag or commit of a policy on the Hub.")
    n_action_steps: int | None = option(
        None, "Steps from one prediction to the next; null takes the policy's own.", least=1
    )
    rtc_config: RtcChanges | None = option(
        None, "Real-time chunking; what is not given is as the policy has it."
    )
    text_tokenizer_name: str | None = option(
        None, "Tokenizer of sentences, by its folder or Hub name; null takes the checkpoint's."
    )
    action_tokenizer_name: str | None = option(
        None, "Tokenizer of actions, of pi0_fast; null takes the checkpoint's."
    )
    vlm_model_name: str | None = option(
        None, "SmolVLM model of smolvla, by its folder or Hub name; null takes the checkpoint's."
    )

    def changes(self) -> dict[str, Any]:
        """Return the options that take the place of the policy's own."""
        where = ("path", "device", "pretrained_revision")
        return {n: v for n, v in self.__dict__.items() if v is not None and n not in where}


@dataclass(frozen=True, kw_only=True)
class EvalRun(Options):
    """One evaluation. Episode k starts from seed + k."""

    beside: ClassVar[dict[str, str]] = {
        "config": "YAML or JSON file with any of these options; flags win over it."
    }

    policy: PolicyChoice = option(REQUIRED, "", section="policy")
    env: EnvConfig = option(REQUIRED, "", section="environment")
    eval: EvalConfig = option(EvalConfig, "", section="evaluation")
    seed: int = option(
        1000,
        "Seed of episode 0; episode k has this plus k.",
        least=0,
        most=SEED_MAX,
        is_common=True,
    )
    output_dir: str | None = option(
        None, "Folder of the result; null makes one below outputs/eval.", is_common=True
    )
    rename_map: dict[str, str] = option(
        dict, "Keys of the environment to keys of the policy, {old: new}."
    )


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Options of `kata data demo`."""

    root: str = option(
        REQUIRED, "Folder to record into, absent or empty.", aliases=("dataset.root",)
    )
    episodes: int = option(50, "Demonstrations that are kept.", least=1)
    seed: int = option(0, "Seed of the demonstrations.", least=0, most=SEED_MAX)
    codec: str = option("av1", "Codec of the videos.", choices=("av1", "h264"))
    targets: int = option(
        1, "Targets on the board; of 2, the task sentence names one.", least=1, most=2
    )
    picture: int = option(
        64,
        "Pixels of a side of the pictures; an environment that is to show the same takes "
        "--env.kwargs='{\"picture\": ...}'.",
        least=16,
        most=512,
    )
    relative: bool = option(
        False,
        "Record actions as ways from where the tool is, not as places; an environment that is to "
        "take them has --env.kwargs='{\"relative\": true}'.",
    )


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Options):
    """Options of `kata data replay`."""

    root: str = option(
        REQUIRED, "Folder to record into, absent or empty.", aliases=("dataset.root",)
    )
    trajectories: str = option(REQUIRED, "An .npz file of joint trajectories.")
    task: str = option("transfer_cube", "Task of ALOHA.", choices=("transfer_cube", "insertion"))
    codec: str = option("av1", "Codec of the videos.", choices=("av1", "h264"))


def resolve_eval(args: Sequence[str]) -> EvalRun:
    """Return the evaluation that the arguments ask for: the file of `--config` with the flags over
    it.

    Raises: ConfigError for an unknown name, a wrong value, or no policy or environment.
    """
    flags = parse_flags(args)
    paths = [flags.pop(name) for name in ("config", "config_path") if name in flags]
    given = read_config(Path(str(paths[-1]))) if paths else {}
    for dotted, value in flags.items():
        assign(given, dotted, value)
    for group, name, example in (
        ("policy", "path", "<checkpoint folder>"),
        ("env", "type", "kata"),
    ):
        inner = given.get(group, {})
        if isinstance(inner, dict) and inner.get(name) is None:
            raise ConfigError(
                f"{group}.{name}: not given",
                rule="an evaluation needs a policy and an environment",
                remedy=f"add --{group}.{name}={example}",
            )
    return decode(EvalRun, given, verb="kata eval")

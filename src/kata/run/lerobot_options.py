"""Options of LeRobot that kata does not have or need: refused by name, never ignored.

A train_config.json of LeRobot lists all of them. Values that change nothing are dropped silently.
"""

from __future__ import annotations

from typing import Any

from kata.config import plain
from kata.errors import ConfigError

_NOT_YET = "kata does not have this yet"

_BUFFER = "kata's buffer of a stream has a limit in bytes, --dataset.buffer_gb"

ABSENT: dict[str, tuple[tuple[Any, ...], str]] = {
    "eval_freq": ((), "LeRobot renamed it to env_eval_freq"),
    "eval.recording": ((False,), _NOT_YET),
    "eval.recording_repo_id": ((None,), _NOT_YET),
    "eval.recording_private": ((False,), _NOT_YET),
    "reward_model": ((None,), _NOT_YET),
    "sample_weighting": ((None,), _NOT_YET),
    "save_checkpoint_to_hub": ((False,), "kata uploads the final policy only (policy.repo_id)"),
    "parallelism.cfg_parallel": ((1,), "it is about inference"),
    "parallelism.context_parallel.ring_degree": ((1,), _NOT_YET),
    "parallelism.context_parallel.ulysses_degree": ((1,), _NOT_YET),
    "parallelism.context_parallel": (({},), _NOT_YET),
    "job": ((), "`kata train` trains where it is started"),
    "checkpoint_path": ((None,), "a run is continued in its folder"),
    "tolerance_s": (
        (1e-4,),
        "kata counts frames in whole numbers, so there is no tolerance to set",
    ),
    "persistent_workers": ((True,), "kata reads with threads, which live as long as the run"),
    "dataloader_multiprocessing_context": (
        ("spawn", None),
        "kata reads with threads, not with worker processes",
    ),
    "buffer_size": ((), _BUFFER),
    "dataset.buffer_size": ((), _BUFFER),
    "dataset.repo_type": (
        ("dataset",),
        "a bucket is read by its address, --dataset.root=hf://buckets/<owner>/<name>",
    ),
    "dataset.video_backend": (("pyav", "torchcodec", None), "kata decodes with PyAV"),
    "dataset.return_uint8": (
        (False, True),
        "frames always stay uint8 until they are on the device",
    ),
    "dataset.depth_output_unit": (("mm",), "kata does not read depth cameras yet"),
    "wandb.disable_artifact": ((False, True), "kata never uploads checkpoints to the tracker"),
}
"""Dotted name -> (values without effect, why it is refused otherwise)."""

_REMEDIES = {
    "eval_freq": "use --env_eval_freq",
    "job": "`kata launch --target=hf:<flavor> -- train ...` starts it as a job",
    "checkpoint_path": "use --resume=true with --output_dir",
}
"""Dotted name -> what to do where it is more than to leave the option out."""

_GROUP_DEFAULTS: dict[str, dict[str, Any]] = {
    "job": {"target": None, "image": ..., "timeout": ..., "detach": False, "tags": []},
}
"""Values without effect inside those groups; `...` stands for any value."""


def drop_foreign(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that only LeRobot has.

    Raises: ConfigError for one that would have had an effect."""
    kept = _copy(raw)
    for dotted, (harmless, why) in ABSENT.items():
        *parents, last = dotted.split(".")
        group: Any = kept
        for name in parents:
            group = group.get(name) if isinstance(group, dict) else None
        if not isinstance(group, dict) or last not in group:
            continue
        value = plain(group.pop(last))
        if dotted in _GROUP_DEFAULTS and isinstance(value, dict):
            _check_group(dotted, value, why)
        elif not any(value is h or value == h for h in harmless):
            raise ConfigError(
                f"{dotted}={value}: not in kata",
                rule=why,
                remedy=_REMEDIES.get(dotted, f"leave out --{dotted}"),
            )
    return kept


def _check_group(group: str, values: dict[str, Any], why: str) -> None:
    defaults = _GROUP_DEFAULTS[group]
    for name, value in values.items():
        if name not in defaults or (defaults[name] is not ... and value != defaults[name]):
            raise ConfigError(
                f"{group}.{name}={value}: not in kata",
                rule=why,
                remedy=_REMEDIES.get(group, f"leave out --{group}.{name}"),
            )


def _copy(raw: dict[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, dict) else v for k, v in raw.items()}

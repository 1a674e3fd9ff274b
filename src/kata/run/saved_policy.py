"""A saved policy: where a checkpoint, a run or a Hub name has its folder, and its options."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kata.config import overlay, read_config
from kata.config.option import declaration
from kata.errors import PolicyError
from kata.pointers import LAST, resolve_pointer
from kata.policies import config_class, stored_type
from kata.policies.config import CONFIG, OWN_CONFIG


def policy_folder(path: str, revision: str | None = None, *, option: str = "policy.path") -> Path:
    """Return the `pretrained_model` folder of a checkpoint, downloaded if it is on the Hub.

    Args:
        path: a checkpoint or run by its folder, or a name on the Hub.
        revision: of the Hub's repository.
        option: the one that named the path, for messages.

    Raises:
        PolicyError: there is no checkpoint.
    """
    local = Path(path).expanduser()
    for candidate in (
        local,
        local / "pretrained_model",
        local / "checkpoints" / LAST / "pretrained_model",
    ):
        folder = resolve_pointer(candidate)
        if (folder / "config.json").is_file():
            return folder
    if local.exists() or path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise PolicyError(
            f"{option}={path}: no config.json there",
            rule="a folder with config.json and model.safetensors, or a Hub name like user/policy",
            remedy="give the `pretrained_model` folder of a checkpoint",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from kata.processors.tokenize import KEPT_FILES

    # Tokenizers lie in folders beside the policy, and not all of their files are JSON.
    wanted = ["*.json", "*.safetensors", *(f"*/{name}" for name in KEPT_FILES)]
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise PolicyError(
            f"{option}={path}: cannot be downloaded ({str(error).splitlines()[0]})",
            rule="a Hub repository that can be reached, or a local folder",
            remedy="check the name and the network, or give a local folder",
        ) from error


def read_policy_config(folder: Path, notes: list[str]) -> dict[str, Any]:
    """Read the config.json of a pretrained folder as raw options.

    Fields that this policy does not know are dropped, with a note."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if (folder / OWN_CONFIG).is_file():
            own = json.loads((folder / OWN_CONFIG).read_text(encoding="utf-8"))
            raw = overlay(raw, own)
        if raw.get("model_type") == "Gr00tN1d7" and "type" not in raw:
            raise PolicyError(
                f"policy.path={folder}: NVIDIA's raw folder of GR00T",
                rule="a checkpoint of LeRobot or kata, whose config.json has a `type`",
                remedy=f"--policy.type=groot --policy.base_model_path={folder}",
            )
        kind = raw["type"] = stored_type(str(raw["type"]))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise PolicyError(
            f"{path}: cannot be read ({error})",
            rule="a JSON object with a `type`",
            remedy="copy it again",
        ) from error
    chosen = config_class(kind)
    raw = chosen.options_beside(folder) | raw
    raw |= tokenizers_in(folder, kind, raw)
    known = {f.name for f in dataclasses.fields(chosen)} | {"type"}
    unknown = sorted(set(raw) - known)
    if unknown:
        notes.append(f"{path}: fields of another version left out: {', '.join(unknown)}")
    return chosen.completed({name: value for name, value in raw.items() if name in known})


def tokenizers_in(folder: Path, kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokenizers that lie in a checkpoint, by the policy's option that names each.

    A checkpoint has a model's config beside its tokenizer, and not its weights. So an option that
    names a model keeps its folder as long as that is there.

    Args:
        folder: a `pretrained_model` folder.
        kind: the policy's type.
        options: the policy's, as they were recorded.
    """
    chosen = config_class(kind)
    try:
        text = (folder / "policy_preprocessor.json").read_text(encoding="utf-8")
        steps = json.loads(text)["steps"]
        places = {step["registry_name"]: step["artifacts"] for step in steps if "artifacts" in step}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # who reads the steps themselves says what is wrong
    found: dict[str, str] = {}
    for option, readers in chosen.tokenizer_steps.items():
        for name, argument in readers:
            if argument not in places.get(name, {}):
                continue
            kept = (folder / places[name][argument]).resolve()
            if not chosen.names_model_by_tokenizer or (
                (kept / CONFIG).is_file() and not Path(str(options.get(option))).is_dir()
            ):
                found[option] = str(kept)
    return found


def with_absolute_paths(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's raw options with folders of pretrained models by their absolute paths.

    A checkpoint keeps them, and is read from other working directories. Hub names stay.

    Args:
        policy: its options, with `type`.
    """
    chosen, found = config_class(str(policy["type"])), dict(policy)
    for name, value in policy.items():
        if isinstance(value, str) and declaration(chosen, name).is_pretrained:
            folder = Path(value).expanduser()
            if folder.is_dir():
                # Elsewhere a mount keeps its name; only `..` after a link needs the link followed.
                found[name] = str(folder.resolve() if ".." in folder.parts else folder.absolute())
    return found


def note_on_passing_base(folder: Path) -> str | None:
    """Return a warning if the run that wrote a base keeps a number of checkpoints and deletes the
    rest; None for any other base.

    Args:
        folder: the `pretrained_model` folder of the base.
    """
    step = folder.resolve().parent
    record = step.parents[1] / "train_config.json"
    if step.parent.name != "checkpoints" or not step.name.isdigit() or not record.is_file():
        return None
    kept = read_config(record)
    rules = [f"{name}={kept[name]}" for name in ("keep_last", "keep_every") if kept.get(name)]
    if not rules:
        return None
    return (
        f"checkpoints of this run refer to {step}, which its own run may delete when it goes on "
        f"({', '.join(rules)}); a copy stays: kata checkpoint export {step} --out=<folder>, and "
        "--policy.path=<folder>"
    )

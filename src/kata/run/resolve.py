"""From the command line to one Run.

recorded config (when resuming) <- config file <- flags -> policy folder -> preset -> Run
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kata.config import (
    assign,
    decode,
    decode_value,
    encode,
    overlay,
    parse_flags,
    plain,
    read_config,
    read_list,
    refuse_unknown,
)
from kata.config.changes import refuse_changes
from kata.config.keep_ranges import read_keep_ranges
from kata.config.option import declaration, refuse_broken, rule_text
from kata.errors import ConfigError, PolicyError, did_you_mean
from kata.optim.config import AdamW8bitConfig, AdamWConfig
from kata.optim.schedule import lr_factor
from kata.pointers import LAST, resolve_pointer
from kata.policies import types_from_recordings
from kata.policies.config import PolicyConfig
from kata.policies.rules import refuse_feature_cache
from kata.run.accelerate_env import take_over
from kata.run.batch_layout import share_out
from kata.run.config import Run
from kata.run.dataset import FEATURE_CACHES, MixEntry
from kata.run.lerobot_options import drop_foreign
from kata.run.parallel import check_beside_sharding
from kata.run.peft import adapter_options, is_adapter
from kata.run.saved_policy import (
    note_on_passing_base,
    policy_folder,
    read_policy_config,
    tokenizers_in,
    with_absolute_paths,
)


def resolve_run(
    args: Sequence[str], ranks: int = 1, environment: Mapping[str, str] | None = None
) -> tuple[Run, list[str]]:
    """Return the Run that arguments of `kata train` ask for, and notes for the user.

    Args:
        args: flags, without the verb.
        ranks: the number of processes that train.
        environment: the variables in which `accelerate launch` passes its settings.

    Raises: ConfigError or PolicyError for options that are unknown, impossible or contradictory.
    """
    notes: list[str] = []
    given = take_over(_gather(args), environment or {}, notes)
    folder = given.get("output_dir")
    resume = decode_value(bool, given.get("resume", False), "resume")
    recorded = _recorded(Path(str(folder))) if resume and folder else None
    if recorded is None:
        return _resolve(given, ranks, notes, keep_micro="batch_size" in given), notes
    if isinstance(given.get("policy"), dict):
        kind = str(recorded["policy"]["type"])
        given["policy"] = _still_there(given["policy"], kind, Path(str(folder)))
    keep_micro = "batch_size" in given or "gradient_accumulation" not in (
        given.get("accelerator") or {}
    )
    # A time limit and the options of sharding hold for one start: they are not inherited.
    recorded_run = {**recorded, "max_time": None, "fsdp": {}, "deepspeed": {}}
    run = _resolve(
        overlay(recorded_run, _without_choices_made(given)),
        ranks,
        notes,
        keep_micro=keep_micro,
    )
    before = decode(Run, recorded)
    run = _with_roles_found(before, run)
    _refuse_changes(before, run)
    return run, notes


def _with_roles_found(before: Run, now: Run) -> Run:
    """Return the run with the renames that its record has for the datasets of a mixture."""
    old, new = before.dataset.mix, now.dataset.mix
    if old is None or new is None or len(old) != len(new):
        return now
    entries: list[MixEntry] = []
    for was, entry in zip(old, new, strict=True):
        renames = {**was.rename_map, **entry.rename_map}
        entries.append(dataclasses.replace(entry, rename_map=renames))
    return dataclasses.replace(now, dataset=dataclasses.replace(now.dataset, mix=entries))


def _without_choices_made(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options without open choices (such as shuffle=auto) that the recorded run has
    made."""
    dataset = given.get("dataset") or {}
    open_choices = {"shuffle": "auto", "clip_pool": 0, "clip_frames": 0, "clip_gop": 0}
    kept = {
        name: value
        for name, value in dataset.items()
        if str(value) != str(open_choices.get(name, ...))
    }
    return {**given, "dataset": kept}


def memory_to_fit(args: Sequence[str]) -> str | None:
    """Return what `--fit` asks for, as a flag or in the config file.

    Raises:
        ConfigError: it is no memory.
    """
    flags = parse_flags(args)
    asked = flags.get("fit", _config_file(flags).get("fit"))
    declared = declaration(Run, "fit")
    if asked is True:
        raise ConfigError(
            "--fit without a memory",
            rule=rule_text(declared, is_whole=False),
            remedy="for example --fit=24GB",
        )
    wanted = decode_value(str | None, asked, "fit")
    refuse_broken(declared, "fit", wanted)
    return wanted


def given_names(args: Sequence[str]) -> set[str]:
    """Return the dotted names of the options that flags and the config file set, null apart."""
    flags = parse_flags(args)
    given = _config_file(flags)
    for dotted, value in flags.items():
        assign(given, dotted, value)
    return _leaves(given, "")


def _leaves(given: dict[str, Any], prefix: str) -> set[str]:
    names: set[str] = set()
    for name, value in given.items():
        if isinstance(value, dict):
            names |= _leaves(value, f"{prefix}{name}.")
        elif plain(value) is not None:
            names.add(prefix + name)
    return names


def _config_file(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the config file, and take its name from the flags."""
    paths = [flags.pop(name) for name in ("config", "config_path") if name in flags]
    return read_config(resolve_pointer(Path(str(paths[-1])))) if paths else {}


def _gather(args: Sequence[str]) -> dict[str, Any]:
    """Merge the flags over the config file; drop or refuse options that only LeRobot has."""
    flags = parse_flags(args)
    given = _config_file(flags)
    _flags_decide_the_batch(given, flags)
    for dotted, value in flags.items():
        assign(given, dotted, value)
    for group, first in _FIRST_OPTION.items():
        if plain(given.get(group)) is None:
            given.pop(group, None)
        elif not isinstance(given[group], dict):
            raise ConfigError(
                f"{group}={given[group]}: not a group of options",
                rule=f"{group} has options below it",
                remedy=f"set one of them, for example --{group}.{first}=…",
            )
    given = drop_foreign(given)
    refuse_unknown(Run, given, "kata train")
    idle = next((name for name in flags if name.startswith("eval.")), None)
    if idle is not None and plain(given.get("env")) is None:
        raise ConfigError(
            f"--{idle} without an environment",
            rule="these options are about evaluating in an environment while training",
            remedy=(
                f"add --env.type=kata (or pusht, aloha, gym with --env.id), or leave out --{idle}"
            ),
        )
    return given


def _flags_decide_the_batch(given: dict[str, Any], flags: dict[str, Any]) -> None:
    """Drop the batch size that a flag makes obsolete: either size follows from the other."""
    if "batch_size" in flags and "global_batch_size" in flags:
        raise ConfigError(
            f"batch_size={flags['batch_size']} and global_batch_size={flags['global_batch_size']}",
            rule="batch_size (per rank) gives the global batch, or the other way round",
            remedy="leave out one of the two",
        )
    if "batch_size" in flags or "accelerator.gradient_accumulation.steps" in flags:
        given.pop("global_batch_size", None)
    elif "global_batch_size" in flags:
        given.pop("batch_size", None)


_FIRST_OPTION = {"dataset": "repo_id", "policy": "type", "optimizer": "lr", "scheduler": "type"}


def _resolve(given: dict[str, Any], ranks: int, notes: list[str], *, keep_micro: bool) -> Run:
    policy = _policy(given, notes)
    peft = _peft(given, policy)
    policy = dataclasses.replace(policy, use_peft=policy.use_peft or peft is not None)
    raw = {**given, "policy": encode(policy), "peft": peft}
    preset_used = given.get("use_policy_training_preset", True)
    if decode_value(bool, preset_used, "use_policy_training_preset"):
        raw["optimizer"] = _optimizer(policy, given.get("optimizer") or {})
        raw["scheduler"] = given.get("scheduler") or encode(policy.scheduler_preset())
        preset = policy.scheduler_preset()
        if preset is not None and isinstance(given.get("scheduler"), dict):
            raw["scheduler"] = overlay(encode(preset), given["scheduler"])
    elif not given.get("optimizer"):
        raise ConfigError(
            "use_policy_training_preset=false and no optimizer",
            rule="without the policy's preset the optimiser must be named",
            remedy="add --optimizer.type=adamw --optimizer.lr=1e-4, or leave the preset on",
        )
    raw["dataset"] = dict(given.get("dataset") or {})
    mix = raw["dataset"].get("mix")
    if isinstance(mix, str) and not mix.startswith("["):
        raw["dataset"]["mix"] = read_list(Path(mix)) if plain(mix) is not None else None
    raw["dataset"] = _with_ranges(raw["dataset"])
    run = share_out(decode(Run, raw, verb="kata train"), ranks, notes, keep_micro=keep_micro)
    if run.mesh[1] > 1:
        check_beside_sharding(run.ddp)
        _refuse_sharded_guest(run.policy)
    if run.dataset.cache in FEATURE_CACHES:
        refuse_feature_cache(
            run.policy,
            run.dataset.cache,
            is_augmented=run.dataset.image_transforms.enable,
            in_shards=run.mesh[1] > 1 or run.deepspeed.zero_stage > 0,
        )
    path = (given.get("policy") or {}).get("path")
    if path is not None and run.refers:
        note = note_on_passing_base(policy_folder(str(path), run.policy.pretrained_revision))
        notes.extend([note] if note else [])
    run.policy.validate_steps(run.steps)
    if run.scheduler is not None:
        fitted, note = run.scheduler.fitted(run.steps)
        run = dataclasses.replace(run, scheduler=fitted)
        notes.extend([note] if note else [])
    return run


def _refuse_sharded_guest(policy: PolicyConfig) -> None:
    if policy.is_guest:
        raise ConfigError(
            f"policy.type={policy.type} with weights in shards",
            rule="the parts of LeRobot's policies are called in ways that sharding does not know",
            remedy="leave out --parallelism.dp_shard: each rank then holds the whole policy",
        )


def _with_ranges(dataset: dict[str, Any]) -> dict[str, Any]:
    """Read the files of kept ranges: the run records what they say, and a resumed run keeps it."""
    found = dict(dataset)
    ranges = plain(found.get("keep_ranges"))
    if isinstance(ranges, str) and not ranges.startswith("{"):
        found["keep_ranges"] = read_keep_ranges(Path(ranges).expanduser())
    if isinstance(found.get("mix"), list):
        entries = found["mix"]
        found["mix"] = [_with_ranges(each) if isinstance(each, dict) else each for each in entries]
    return found


def _policy(given: dict[str, Any], notes: list[str]) -> PolicyConfig:
    raw = dict(given.get("policy") or {})
    path = raw.pop("path", None)
    if path is None:
        if "type" not in raw:
            raise ConfigError(
                "policy: neither type nor path",
                rule=(
                    "--policy.type starts a fresh policy, --policy.path continues from a "
                    "pretrained one"
                ),
                remedy="for example --policy.type=act; types: "
                + ", ".join(sorted(types_from_recordings())),
            )
        raw = with_absolute_paths(raw)
        return decode(PolicyConfig, raw, at="policy", verb="kata train")
    if "type" in raw:
        raise ConfigError(
            f"policy.path={path} together with policy.type={raw['type']}",
            rule="a pretrained folder fixes the type",
            remedy="leave out one of the two",
        )
    folder = policy_folder(str(path), raw.get("pretrained_revision"))
    base = read_policy_config(folder, notes)
    _refuse_unknown_inputs(base.get("input_features") or {}, raw.get("input_features"), str(path))
    raw = overlay(base, {**raw, "pretrained_path": str(path)})
    return decode(PolicyConfig, with_absolute_paths(raw), at="policy", verb="kata train")


def _refuse_unknown_inputs(known: Mapping[str, Any], asked: Any, path: str) -> None:
    """Refuse inputs that a base does not have: they would be dropped beside those that it has."""
    unknown = [key for key in asked if key not in known] if isinstance(asked, dict) else []
    if known and unknown:
        raise PolicyError(
            f"policy.input_features: {unknown[0]} is no input of {path}",
            rule=f"a base keeps its inputs: {', '.join(known)}",
            remedy=did_you_mean(unknown[0], known)
            + '; --rename_map=\'{"<dataset key>": "<base\'s key>"}\' gives it a camera of '
            "another name",
        )


def _optimizer(policy: PolicyConfig, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the preset with the options that are asked for; 8 bits keep the preset of AdamW."""
    preset = encode(policy.optimizer_preset())
    narrow = AdamW8bitConfig.type_name
    if str(asked.get("type")) == narrow and preset["type"] == AdamWConfig.type_name:
        preset["type"] = narrow
    return overlay(preset, asked)


def _peft(given: dict[str, Any], policy: PolicyConfig) -> Any:
    """Return the options of an adapter, those of the adapter that policy.path is if it is one."""
    asked = given.get("peft")
    is_asked = plain(asked) is not None
    path = (given.get("policy") or {}).get("path")
    if path is not None:
        folder = policy_folder(str(path), policy.pretrained_revision)
        if is_adapter(folder):
            if is_asked:
                raise ConfigError(
                    f"policy.path={path} with options of peft",
                    rule="this folder is an adapter, which is trained on as it is",
                    remedy="leave out --peft.*; or merge it first: "
                    f"kata checkpoint export {path} --merge=true --out=<folder>",
                )
            return encode(adapter_options(folder))
    elif is_asked and policy.pretrained_path is None:
        raise ConfigError(
            "peft without policy.path",
            rule="an adapter adds to a trained base, which stays as it is",
            remedy="add --policy.path=<checkpoint or Hub name> in place of --policy.type",
        )
    return asked if is_asked else None


def _recorded(folder: Path) -> dict[str, Any] | None:
    """Return the resolved config of the run in this folder, or None without one."""
    path = folder / "train_config.json"
    if not path.is_file():
        return None
    recorded = drop_foreign(read_config(path))
    policy = with_absolute_paths(recorded["policy"])
    recorded["policy"] = _still_there(policy, str(policy["type"]), folder)
    if recorded.get("global_batch_size") is None:  # written before there were ranks
        recorded["global_batch_size"] = decode(Run, recorded).effective_batch
    return recorded


def _still_there(policy: dict[str, Any], kind: str, run: Path) -> dict[str, Any]:
    """Return a policy's options with tokenizers that are gone taken from the run's checkpoint."""
    found = dict(policy)
    last = resolve_pointer(run / "checkpoints" / LAST / "pretrained_model")
    for name, place in tokenizers_in(last, kind, policy).items():
        if name in found and not Path(str(found[name])).is_dir():
            found[name] = place
    return found


def _refuse_changes(before: Run, now: Run) -> None:
    refuse_changes(
        before,
        now,
        lambda declared: declared.may_change,
        rule="a resumed run keeps what decides its numbers",
        remedy="give the recorded value, or start a new run with --policy.path=<checkpoint> in "
        "another folder",
    )
    bent = next(
        (step for step in _probes(before, now) if _factor(before, step) != _factor(now, step)), None
    )
    if bent is not None:
        raise ConfigError(
            f"resume: the learning rate of step {bent + 1} was {_factor(before, bent):.6g} and is "
            f"now {_factor(now, bent):.6g} times its base (steps {before.steps} -> {now.steps}, "
            f"schedule {now.scheduler.type if now.scheduler else 'constant'})",
            rule="a resumed run keeps the learning rate of the steps already taken",
            remedy=(
                "keep the schedule and the number of steps it is drawn over, or start a new "
                "run from the checkpoint with --policy.path"
            ),
        )


def _factor(run: Run, step: int) -> float:
    return lr_factor(run.scheduler, step, run.steps)


def _probes(before: Run, now: Run) -> list[int]:
    """Return steps of both runs: a thousand evenly spaced, and those where a schedule bends."""
    shared = min(before.steps, now.steps)
    bends = [0, shared - 1]
    for scheduler in (before.scheduler, now.scheduler):
        if scheduler is not None:
            bends += [scheduler.num_warmup_steps + offset for offset in (-1, 0, 1)]
    return sorted(
        step for step in {*range(0, shared, max(1, shared // 1000)), *bends} if 0 <= step < shared
    )

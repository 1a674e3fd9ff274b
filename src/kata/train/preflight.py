"""The plan of a run, as one table printed before step 1 and kept in the report."""

from __future__ import annotations

from rich.console import Console

from kata.data import Dataset
from kata.data.dataset.mixture import Mixture
from kata.finetune.lora import adapted, full_names, lerobot_name
from kata.log import SHOWN
from kata.optim.schedule import lr_factor
from kata.policies.base import Policy
from kata.run import Run
from kata.run.peft import PeftConfig
from kata.spec import Feature, NormMode, features_of
from kata.tables import aligned_table, table_lines
from kata.train.checkpoint.retention import Room
from kata.train.input.prepare import Prepared
from kata.units import bytes_text, count_text, counted, numbered

Facts = list[tuple[str, str]]


def preflight_facts(prepared: Prepared, policy: Policy, folder: str, room: Room) -> Facts:
    """Return (name, value) rows of data, features, parameters, batch, learning rate and device."""
    run = prepared.run
    rows = [*_data(prepared), *_features(prepared), *prepared.base_rows]
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in policy.frozen())
    samples, epoch = run.steps * run.effective_batch, len(prepared.data.rows)
    batch = (
        f"{run.batch_size} per rank x {run.ranks} rank{'s' * (run.ranks != 1)} x "
        f"{run.accumulation} accumulated = "
        f"{run.effective_batch} samples"
    )
    return [
        *rows,
        (
            "policy",
            f"{run.policy.type}: {count_text(trained)} parameters trained, {count_text(frozen)} "
            "frozen",
        ),
        *policy.preflight_rows(),
        *adapter_facts(policy, run.peft),
        ("batch", batch),
        *_layout(run),
        (
            "steps",
            f"{count_text(run.steps)} = {samples / epoch:.2f} epochs of {count_text(epoch)} "
            "samples",
        ),
        ("learning rate", _rates(run)),
        ("device", f"{prepared.device}, mixed precision: {run.precision}"),
        *_engine(run),
        ("upload", _upload(run)),
        ("run folder", folder),
        ("checkpoints", _checkpoints(run, room)),
        *_evaluation(run, room),
    ]


def adapter_facts(policy: Policy, options: PeftConfig | None) -> Facts:
    """Return rows of the adapters, with every target by LeRobot's name."""
    if options is None:
        return []
    names = [lerobot_name(policy, name) for name in adapted(policy)]
    lora = sum(p.numel() for n, p in policy.named_parameters() if ".lora_" in n)
    scale = options.alpha / options.r
    rows = [
        (
            "adapter",
            f"LoRA of rank {options.r} and alpha {options.alpha} (scale {scale:g}), "
            f"{count_text(lora)} numbers in {counted(len(names), 'linear map')}",
        )
    ]
    rows += [("", line) for line in numbered(names)]
    full = [lerobot_name(policy, name) for name in full_names(policy, options)]
    return rows + [("", f"{line}, in full") for line in numbered(full)]


def _layout(run: Run) -> Facts:
    copies, shards = run.mesh
    if shards == 1:
        return []
    kind = "FSDP" if copies == 1 else "HSDP"
    return [
        (
            "weights",
            f"{copies} {'copy' if copies == 1 else 'copies'} in {shards} shards each ({kind})",
        )
    ]


def show(console: Console, rows: Facts, notes: list[str]) -> None:
    """Print the table, then what the user should know."""
    lines = table_lines(rows)
    for line in lines:
        SHOWN.info("%s", line)
    if console.is_terminal:
        console.print(aligned_table(rows, first_style="bold"))
    else:
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    for note in notes:
        SHOWN.info("note: %s", note)
        soft = not console.is_terminal
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=soft)


def _data(prepared: Prepared) -> Facts:
    """Return rows of the training and held-out data.

    A mixture has rows for each dataset, with its share and its epochs.
    """
    data, held = prepared.data.train, prepared.data.val_dataset
    if data.is_single:
        rows = [("dataset", _named(data.datasets[0])), ("training data", _amount(data))]
        return [*rows, ("held out", _held(held))] if held is not None else rows
    shares, sizes = data.shares(prepared.data.rows), data.sizes(prepared.data.rows)
    seen = shares.seen(prepared.run.steps * prepared.run.effective_batch)
    rows: Facts = []
    for i, part in enumerate(data.parts):
        share = (
            f"{shares.counts[i] / shares.period:.4g} of the samples, {seen[i] / sizes[i]:.2f} "
            "epochs"
        )
        apart = f", held out {_held(held.datasets[i])}" if held else ""
        rows.append((f"dataset {i}", f"{part.name}: {_named(part.dataset)}"))
        rows.append(("", f"{share} of {_amount(part.dataset)}{apart}"))
        names = part.rename or {}
        told = [f"{key} -> {names[key]} (found)" for key in prepared.found[i]]
        rows += [("", text) for text in (*_joined_texts(part.dataset), *told)]
    options = prepared.run.dataset
    acting = options.mix_primary or data.names[0]
    rows.append(("mixture", f"statistics: {options.mix_stats}; a checkpoint acts as for {acting}"))
    return rows


def _named(data: Dataset) -> str:
    return (
        f"{data.repo_id} ({data.version}, {data.fps} fps, {data.robot_type or 'robot not named'})"
    )


def _held(held: Dataset | Mixture) -> str:
    index = list(dict.fromkeys(held.episodes.index.tolist()))
    numbers = ", ".join(map(str, index[:8])) + (", …" if len(index) > 8 else "")
    return f"{_amount(held)} (episode{'s' * (len(index) != 1)} {numbers})"


def _features(prepared: Prepared) -> Facts:
    """Return a row per key: as the dataset stores it and as the policy reads it.

    Columns that the policy does not read have a row as well.
    """
    policy, rename = prepared.run.policy, prepared.run.rename_map
    data = prepared.data.train
    found = prepared.found[0] if data.is_single else []
    features = {**policy.input_features, **policy.output_features}
    rows: Facts = []
    for key, feature in features_of(data.columns, rename).items():
        name = rename.get(key, key)
        side = "policy does not use it"
        if name in features:
            mode = policy.normalization_mapping.get(feature.type.value, NormMode.IDENTITY)
            side = f"policy: {name} {_shape(features[name])}, {mode}"
        if data.parts[0].own(key) in found:
            side += " (found)"
        rows.append((feature.type.value.lower(), f"{key} {_shape(feature)} -> {side}"))
    if data.is_single:
        rows += [("", text) for text in _joined_texts(data.datasets[0])]
    return rows


def _joined_texts(data: Dataset) -> list[str]:
    """Return a line for each joined column: its parts with their sizes."""
    texts: list[str] = []
    for key, parts in data.concat.items():
        sizes = [f"{part} {data.info.columns[part].shape[0]}" for part in parts]
        texts.append(f"{key} = {' + '.join(sizes)}")
    return texts


def _shape(feature: Feature) -> str:
    return "x".join(map(str, feature.shape))


def _amount(data: Dataset | Mixture) -> str:
    cut = f" in {counted(len(data.episodes.index), 'kept range')}" if data.is_cut else ""
    return f"{counted(data.num_episodes, 'episode')}{cut}, {counted(data.num_frames, 'frame')}"


def _rates(run: Run) -> str:
    assert run.optimizer is not None
    base = run.optimizer.lr * run.lr_scale
    if run.scale_lr != "none":
        return (
            f"{run.optimizer.lr:g} -> {base:g} ({run.scale_lr} in {run.scale_lr_by:g}); "
            f"{_course(run, base)}"
        )
    return _course(run, base)


def _course(run: Run, base: float) -> str:
    assert run.optimizer is not None
    first, last = (base * lr_factor(run.scheduler, step, run.steps) for step in (0, run.steps - 1))
    if run.scheduler is None:
        return f"{base:g}, constant ({run.optimizer.type})"
    peak = base * max(lr_factor(run.scheduler, s, run.steps) for s in _probes(run))
    return (
        f"{first:g} at step 1, {peak:g} at most, {last:g} at step {run.steps} "
        f"({run.scheduler.type})"
    )


def _probes(run: Run) -> list[int]:
    assert run.scheduler is not None
    return [0, min(run.scheduler.num_warmup_steps, run.steps - 1), run.steps - 1]


def _checkpoints(run: Run, room: Room) -> str:
    """Say how much disk saving takes, and how much host memory while the run lasts."""
    if not run.save_checkpoint:
        return "none (save_checkpoint=false)"
    whole = {"safetensors": room.checkpoint, "both": room.weights * (1 + run.ema.enable), "dcp": 0}[
        run.stored_as
    ]
    held = whole + (room.weights if run.dataset.eval_split else 0)
    return (
        f"{bytes_text(room.checkpoint)} each ({run.stored_as}), up to {bytes_text(room.run)} more "
        "on the disk; "
        f"{bytes_text(held)} of host memory hold the copy that is written beside training"
    )


def _evaluation(run: Run, room: Room) -> Facts:
    """Return a row of the evaluation in an environment, with the memory that it takes."""
    if run.env is None:
        return []
    ranks = sum(len(run.eval.share(rank, run.ranks)) > 0 for rank in range(run.ranks))
    when = f"every {count_text(run.env_eval_freq)} steps and " if run.env_eval_freq else ""
    who = "a process" if ranks == 1 else f"a process beside each of {ranks} ranks"
    what = (
        f"{count_text(run.eval.n_episodes)} episodes of {run.env.id or run.env.type}, {when}at "
        f"the end, by {who}"
    )
    takes = (
        f"{bytes_text(room.weights)} of host memory for a copy of the weights, and as much to "
        "act with"
    )
    return [("evaluation", f"{what}; each takes {takes}")]


def _engine(run: Run) -> Facts:
    """Return a row of the engine that reduces the gradients, where there are several ranks."""
    if run.ranks == 1 and not run.deepspeed.zero_stage:
        return []
    zero = f", DeepSpeed ZeRO {run.deepspeed.zero_stage}" if run.deepspeed.zero_stage else ""
    return [("engine", f"{run.engine}{zero}")]


def _upload(run: Run) -> str:
    if not run.policy.push_to_hub:
        return "none (policy.push_to_hub=false)"
    return run.policy.repo_id or "none (no policy.repo_id given)"

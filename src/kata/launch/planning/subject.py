"""The run and the machine that a plan is about."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from pathlib import Path

from kata.data import anchor_rows
from kata.data.dataset.mixture import Mixture
from kata.errors import ConfigError, PolicyError, did_you_mean
from kata.launch.flavors import known_flavors
from kata.launch.gpus import nvidia_smi
from kata.launch.planning.options import DescribedDataset, PlanOptions
from kata.plan.catalogue import MIB, Gpu, gpu_named, gpu_of_device
from kata.plan.data_size import VIDEO_BYTES_PER_PIXEL, DataSize
from kata.plan.forecast import Machine
from kata.plan.profiles import kept_line, kept_profile
from kata.plan.trace_store import trace_path
from kata.policies.config import PolicyConfig
from kata.run import Run
from kata.spec import ACTION, STATE, Feature, FeatureType
from kata.train.input.datasets import open_data, split_data, take_roles
from kata.train.input.features import fit_features

CPU = "cpu"
_VECTOR_BYTES = 4


def described(run: Run, data: DescribedDataset) -> tuple[Run, DataSize]:
    """Return the run with the features of a described dataset, and its size.

    Raises:
        PolicyError: the policy's own features contradict the description.
        ConfigError: the batch is larger than the dataset.
    """
    number, height, width = data.camera_sizes
    inputs: dict[str, Feature] = {}
    if data.state_dim is not None:
        inputs[STATE] = Feature(FeatureType.STATE, (data.state_dim,))
    # The cameras of a policy that has its own are described in its order.
    names = [*run.policy.cameras][:number]
    names += [f"observation.images.camera{camera}" for camera in range(len(names), number)]
    for key in names:
        inputs[key] = Feature(FeatureType.VISUAL, (3, height, width))
    assert data.action_dim is not None
    outputs = {ACTION: Feature(FeatureType.ACTION, (data.action_dim,))}
    _refuse_other_features(run.policy, inputs, outputs)
    own = run.policy.input_features
    policy = run.policy.with_features(
        {key: inputs[key] for key in own if key in inputs} or inputs, outputs
    )
    policy.validate_features()
    frames = data.frames or 0
    episodes = data.episodes_count or 0
    samples = frames - policy.drop_last_frames() * episodes
    if samples < run.effective_batch:
        raise ConfigError(
            f"batch of {run.effective_batch} samples, dataset of {max(samples, 0)}",
            rule="a batch is no larger than the dataset",
            remedy="--batch_size=1, or more frames",
        )
    values = (data.state_dim or 0) + data.action_dim
    pixels = number * height * width
    disk = frames * (pixels * VIDEO_BYTES_PER_PIXEL + values * _VECTOR_BYTES)
    size = DataSize(samples, episodes, data.fps or 0.0, int(disk), is_described=True, frames=frames)
    return dataclasses.replace(run, policy=policy), size


def _refuse_other_features(
    policy: PolicyConfig, inputs: dict[str, Feature], outputs: dict[str, Feature]
) -> None:
    """Refuse a description that lacks what the policy wants, by the rule of its training."""
    described = {**inputs, **outputs}
    wanted = {**policy.input_features, **policy.output_features}
    lacking = [key for key in wanted if not policy.accepts(key, described)]
    if lacking:
        wants = ", ".join(f"{key} {wanted[key].shape}" for key in lacking)
        gives = ", ".join(f"{key} {feature.shape}" for key, feature in described.items())
        raise PolicyError(
            f"the policy wants {wants}, and the description gives {gives}",
            rule="a dataset has what its policy wants",
            remedy="change --dataset.cameras, state_dim or action_dim, or the policy's features",
        )


def with_dataset(run: Run) -> tuple[Run, DataSize]:
    """Return the run with the features of its dataset, and the dataset's size.

    Raises:
        KataError: the dataset cannot be opened, or does not suit the policy.
    """
    run, whole, _ = take_roles(run, open_data(run.dataset))
    policy = fit_features(run.policy, whole, run.rename_map)
    policy.validate_features()
    train, _ = split_data(whole, run.dataset.eval_split)
    rows = anchor_rows(train, policy.drop_last_frames())
    fps, frames = float(whole.datasets[0].fps), whole.num_frames
    size = DataSize(len(rows), train.num_episodes, fps, _disk_bytes(whole), frames=frames)
    return dataclasses.replace(run, policy=policy), size


def _disk_bytes(data: Mixture) -> int | None:
    """Return the bytes of the files of local datasets; None if one is elsewhere."""
    total = 0
    for dataset in data.datasets:
        folder = Path(str(dataset.root))
        if not folder.is_dir():
            return None
        total += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return total


def machine_of(options: PlanOptions, run: Run) -> tuple[Machine, list[str]]:
    """Return the machine that a plan is for, and notes for the user.

    Raises:
        ConfigError: the GPU or the flavor is unknown, or there is neither here.
    """
    if options.flavor is not None:
        return flavor_machine(options.flavor), []
    ranks = options.gpus * options.nodes
    if options.gpu not in (None, CPU):
        machine = Machine(gpu=gpu_named(options.gpu or ""), ranks=ranks, nodes=options.nodes)
        return _measured(machine, machine.gpu.name, run)
    here = None if options.gpu == CPU else gpu_here()
    if here is not None:
        machine = Machine(
            gpu=here, ranks=ranks, nodes=options.nodes, cores=num_cores() // ranks or 1
        )
        return _measured(machine, here.name, run)
    profile = kept_profile(processor(), run.precision)
    if profile is None:
        raise ConfigError(
            "gpu: not given, and there is no profile of this machine's processor"
            if options.gpu is None
            else f"gpu={CPU}: there is no profile of {processor()}",
            rule="a plan is for a GPU of the catalogue, or for a device that was measured",
            remedy="for example --gpu=rtx4090, or --gpu=auto; `kata plan --calibrate` measures "
            "this machine",
        )
    cpu = Gpu(CPU, profile.memory_bytes, profile.bytes_s, 0, 0, 0, True, 0.0, "none")
    return _measured(Machine(gpu=cpu, ranks=ranks, cores=num_cores()), processor(), run)


def _measured(machine: Machine, device: str, run: Run) -> tuple[Machine, list[str]]:
    """Return the machine with the rates of its profile, if there is one."""
    profile = kept_profile(device, run.precision)
    if profile is None:
        return machine, []
    trace = trace_path(run, CPU if machine.gpu.name == CPU else "cuda").stem
    _, warning = profile.rates()
    notes = [warning] if warning else []
    measured = machine.with_profile(profile)
    return dataclasses.replace(measured, step_line=kept_line(device, trace)), notes


def flavor_machine(name: str) -> Machine:
    """Return a machine of Hugging Face Jobs.

    Raises:
        ConfigError: there is none of that name, or it has no GPU.
    """
    offered = known_flavors()
    if name not in offered:
        raise ConfigError(
            f"flavor={name}: no such machine",
            rule="one of the flavors of Hugging Face Jobs; `kata launch flavors` lists them",
            remedy=did_you_mean(name, offered),
        )
    flavor = offered[name]
    if not flavor.gpus:
        raise ConfigError(
            f"flavor={name}: has no GPU",
            rule="a plan is for a machine with a GPU",
            remedy="for example --flavor=l4x1",
        )
    return Machine(
        gpu=gpu_named(flavor.gpu),
        ranks=flavor.gpus,
        cores=max(1, flavor.cores // flavor.gpus),
        usd_per_hour=flavor.usd_per_hour,
    )


def gpu_here() -> Gpu | None:
    """Return the first GPU of this machine, if the catalogue has it."""
    answer = nvidia_smi("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    if not answer or not answer.strip():
        return None
    name, _, memory = answer.splitlines()[0].rpartition(",")
    return gpu_of_device(name.strip(), int(float(memory)) * MIB)


def processor() -> str:
    """Return the name of this machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1

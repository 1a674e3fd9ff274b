"""Counts the work of a training step of GR00T, EO-1 and Wall-X beside LeRobot's: kernels, bytes
saved for the backward pass, floating-point operations, and the times that the host waits.

    PYTHONPATH=src:.:tools/peer <LeRobot's python> benchmarks/qwen_counts.py OUT.json [POLICY ...]

Both sides have the published numbers of layers in narrow widths, the weights of the comparison
(tools/peer), one camera of 480x640, and three samples, each prepared by its own pipeline. Tensors
of numbers with fractions are fake and follow CUDA's rules. Those of integers and truth values are
real, since transformers' Qwen asks them for the sizes of images and the places of tokens.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import policy_eo1
import policy_groot
import policy_wall_x
import tiny_groot
import torch
from sides import own_loss, plain_stats
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from kata.bench.step.peer_step import PeerRecorder, counts_of
from kata.optim.build import build_optimizer
from kata.plan.tracing.cuda_rules import cuda_rules
from kata.plan.tracing.fake_tensors import treated_as_real
from kata.plan.tracing.recorder import tensors_in

CAMERA_SIZE = (3, 480, 640)
TEXT = {
    "hidden_size": 128, "intermediate_size": 688, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [1, 1, 2],
    },
}  # fmt: skip
VISION = {
    "depth": 32, "hidden_size": 128, "intermediate_size": 344, "num_heads": 16,
    "out_hidden_size": 128, "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112,
}  # fmt: skip
"""Qwen2.5-VL's layers and heads; widths are a sixteenth and a tenth."""


class MixedRecorder(PeerRecorder):
    """A recorder of steps whose integers are real.

    Attributes:
        waits: times that the host asked the device for values; a whole list of them is one.
        real: kernels of operations on integers and truth values alone. transformers computes some
            of them on the host.
    """

    def __init__(self, resident: dict[str, list[Tensor]]) -> None:
        super().__init__(resident)
        self.real = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, and record it: really where nothing fake takes part."""
        aten = torch.ops.aten
        given = list(tensors_in((args, kwargs or {})))
        is_real = not any(isinstance(one, FakeTensor) for one in given)
        if func is aten._local_scalar_dense.default and is_real:
            self.waits += 1
            with unset_fake_temporarily():
                return func(*args)
        if given and is_real:
            self.waits += func in (aten.nonzero.default, aten.unique_consecutive.default)
            before = len(self.recording.operations)
            with unset_fake_temporarily():
                made = super().__torch_dispatch__(func, types, args, kwargs)
            self.real += sum(each.launches for each in self.recording.operations[before:])
            return made
        if not given and not (kwargs or {}).get("dtype", torch.int64).is_floating_point:
            with unset_fake_temporarily():
                made = func(*args, **(kwargs or {}))
                if isinstance(made, Tensor) and not made.is_floating_point():
                    return made
        return super().__torch_dispatch__(func, types, args, kwargs)

    def places_in(self, mask: Tensor) -> int:
        """Return how many values of a mask are True."""
        with unset_fake_temporarily():
            return int(mask.sum())


@contextmanager
def lists_in_one(recorder: PeerRecorder) -> Generator[None]:
    """Let `Tensor.tolist` count as one wait inside the block, not as one for each number."""
    with ExitStack() as stack:
        for kind in (Tensor, FakeTensor):
            listed = functools.partialmethod(_listed, kind.tolist, recorder)
            stack.enter_context(mock.patch.object(kind, "tolist", listed))
        yield


def _listed(tensor: Tensor, plain: Callable[[Tensor], Any], recorder: PeerRecorder) -> Any:
    before = recorder.waits
    found = plain(tensor)
    recorder.waits = before + 1
    return found


def faked(policy: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Replace a policy's parameters and its buffers with fractions by fake ones, and return it."""
    made: dict[int, Any] = {}
    for module in policy.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                fake = mode.from_tensor(parameter.detach())
                made[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = mode.from_tensor(buffer)
    return policy


def fake_batch(batch: Mapping[str, Any], mode: FakeTensorMode) -> dict[str, Any]:
    """Return a batch whose tensors with fractions are fake."""
    found: dict[str, Any] = {}
    for key, value in batch.items():
        is_faked = isinstance(value, Tensor) and (
            value.is_floating_point() or value.dtype == torch.uint8
        )
        found[key] = mode.from_tensor(value) if is_faked else value
    return found


def count(
    policy: nn.Module,
    batch: Mapping[str, Any],
    loss_of: Callable[[dict[str, Any]], Tensor],
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
) -> dict[str, Any]:
    """Return the counts of a step after the first one, as `kata bench step` names them."""
    with ExitStack() as stack:
        stack.enter_context(treated_as_real())
        stack.enter_context(cuda_rules())
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        faked(policy, mode)
        optimizer = optimizer_of(policy)
        given = fake_batch(batch, mode)
        state = {"weights": [*policy.parameters(), *policy.buffers()]}
        for _ in range(2):  # the first makes the optimizer's state
            with MixedRecorder(state) as recorder, lists_in_one(recorder):
                _one_step(policy, given, loss_of, optimizer, recorder)
            state["optimizer_state"] = list(tensors_in(list(optimizer.state.values())))
        return {
            **counts_of(recorder.recording),
            "host_waits": recorder.waits,
            "on_integers": recorder.real,
        }


def _one_step(
    policy: nn.Module,
    batch: dict[str, Any],
    loss_of: Callable[[dict[str, Any]], Tensor],
    optimizer: torch.optim.Optimizer,
    recorder: MixedRecorder,
) -> None:
    for storage in recorder.alive():
        storage.part = storage.part or "inputs"
    recorder.label("inputs", tensors_in(batch))
    recorder.enter_phase("forward")
    loss = loss_of(batch)
    recorder.end_forward()
    recorder.enter_phase("backward")
    loss.backward()
    recorder.enter_phase("optimizer")
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    waits = recorder.waits
    optimizer.step()
    recorder.waits = waits  # counts of steps, which are on the host
    optimizer.zero_grad()


def peer_optimizer(policy: Any) -> torch.optim.Optimizer:
    """Return LeRobot's optimizer, with kernels for lists as on CUDA."""
    optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    for group in (optimizer.defaults, *optimizer.param_groups):
        group["foreach"] = True
    return optimizer


def own_optimizer(policy: Any) -> torch.optim.Optimizer:
    """Return kata's optimizer."""
    return build_optimizer(policy.param_groups(), policy.config.optimizer_preset())


def own_counts(tools: Any, case: Any) -> dict[str, Any]:
    """Return the counts of kata's step."""
    policy, given, draws = tools.training_sample(case)
    is_pad = given.get("action_is_pad", tools.batch(case)["action_is_pad"])
    return count(policy, given, lambda b: own_loss(policy, b, is_pad, **draws), own_optimizer)


def eo1() -> dict[str, Any]:
    """Return both sides' counts of EO-1."""
    from lerobot.policies.eo1 import modeling_eo1
    from lerobot.policies.eo1.processor_eo1 import make_eo1_pre_post_processors

    tools = policy_eo1
    case = tools.Case(
        {tools.STATE: (7,), tools.TOP: CAMERA_SIZE},
        6,
        options={
            "chunk_size": 8, "n_action_steps": 8, "image_min_pixels": 64 * 28**2,
            "image_max_pixels": 128 * 28**2,
        },
        vlm={"text": TEXT, "vision": VISION},
    )  # fmt: skip
    policy = tools.build_peer(case).train()
    steps = make_eo1_pre_post_processors(policy.config, plain_stats(7, 6))[0]
    with mock.patch.object(modeling_eo1, "sample_time_beta", return_value=tools.times(case)):
        peer = count(
            policy, steps(tools.batch(case)), lambda b: policy.forward(b)[0], peer_optimizer
        )
    return {"lerobot": peer, "kata": own_counts(tools, case)}


def wall_x() -> dict[str, Any]:
    """Return both sides' counts of Wall-X."""
    from lerobot.policies.wall_x import modeling_wall_x
    from lerobot.policies.wall_x.processor_wall_x import make_wall_x_pre_post_processors

    tools = policy_wall_x
    experts = [
        {"hidden_size": 128, "intermediate_size": 688, "hidden_act": "silu"},
        {"hidden_size": 128, "intermediate_size": 128, "hidden_act": "silu"},
    ]
    case = tools.Case(
        {tools.STATE: (7,), tools.FACE: CAMERA_SIZE},
        6,
        options={"chunk_size": 32, "n_action_steps": 32},
        text={**TEXT, "experts": experts, "dim_inputs": [128, 128]},
        vision=VISION,
    )
    policy = tools.build_peer(case).train()
    steps = make_wall_x_pre_post_processors(policy.config, plain_stats(7, 6))[0]
    inputs = policy.preprocess_inputs(steps(tools.batch(case)), compute_position_ids=True)
    times = (1 - torch.tensor(tools.SHARES) ** (1 / 1.5)) * 0.999
    with mock.patch.object(modeling_wall_x.ActionHead, "sample_time", return_value=times):
        peer = count(policy, inputs, lambda b: policy.model(**b, mode="train").loss, peer_optimizer)
    return {"lerobot": peer, "kata": own_counts(tools, case)}


STACK = {"positional_embeddings": None, "num_attention_heads": 32, "dropout": 0.2}


def groot() -> dict[str, Any]:
    """Return both sides' counts of GR00T."""
    tools = policy_groot
    qwen = tiny_groot.qwen_config()
    qwen["text_config"] |= {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8,
    }  # fmt: skip
    qwen["vision_config"] |= {
        "depth": 24, "hidden_size": 64, "intermediate_size": 256, "num_heads": 16,
        "out_hidden_size": 128, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    }  # fmt: skip
    heads = {**STACK, "attention_head_dim": 4}
    case = tools.Case(
        {tools.STATE: (7,), tools.TOP: CAMERA_SIZE},
        6,
        options={"chunk_size": 40, "n_action_steps": 40},
        changes={
            "select_layer": 16, "backbone_embedding_dim": 128, "hidden_size": 64,
            "input_embedding_dim": 128, "action_horizon": 40, "max_seq_len": 1024,
            "diffusion_model_cfg": {
                "num_layers": 32, "norm_type": "ada_norm", "output_dim": 64,
                "final_dropout": True, "interleave_self_attention": True, **heads,
            },
            "vl_self_attention_cfg": {"num_layers": 4, "final_dropout": True, **heads},
        },
        processor={"image_target_size": [256, 256], "image_crop_size": [230, 230]},
    )  # fmt: skip
    with mock.patch.object(tiny_groot, "qwen_config", return_value=qwen):
        policy = tools.build_peer(case).train()
        policy._groot_model.action_head._beta_dist = tools._Times()
        inputs = tools.peer_pipelines(case, policy.config)[0](tools.batch(case))
        peer = count(policy, inputs, lambda b: policy.forward(b)[0], peer_optimizer)
        return {"lerobot": peer, "kata": own_counts(tools, case)}


SUMS = ("saved_bytes", "flops", "host_waits", "on_integers")
POLICIES = {"groot": groot, "eo1": eo1, "wall_x": wall_x}


def main(out: str, *names: str) -> None:
    """Count the policies, print the sums, and write JSON."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name in names or POLICIES:
        found[name] = POLICIES[name]()
        for side, counts in found[name].items():
            sums = {"kernels": sum(counts["launches"].values())}
            sums |= {
                key: counts[key] for key in ("saved_bytes", "flops", "host_waits", "on_integers")
            }
            print(name, side, sums, counts["launches"], flush=True)
    versions = {name: version(name) for name in ("lerobot", "torch", "transformers")}
    about = {"command": "benchmarks/qwen_counts.py", "versions": versions, "samples": 3}
    Path(out).write_text(json.dumps({**about, "policies": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

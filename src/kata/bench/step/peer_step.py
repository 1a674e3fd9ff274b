"""The counts of LeRobot's training step; runs in an environment with LeRobot.

`python -m kata.bench.step.peer_step <policy> <batch size> <precision>` prints them as JSON. The
step is that of `update_policy` in LeRobot's trainer, without its loader, on fake tensors under the
rules that kata's step is traced with.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kata.bench.step.cases import step_run, without_downloads
from kata.plan.tracing.blank_batch import blank_batch
from kata.plan.tracing.cuda_rules import cuda_rules
from kata.plan.tracing.fake_tensors import treated_as_real
from kata.plan.tracing.recorder import Recording, StepRecorder, tensors_in
from kata.policies.multi_task_dit.encoders import BASE_PATCH16, TEXT, VISION
from kata.policies.smolvla.backbone import SMOLVLM_500M
from kata.policies.xvla.config import Config as XvlaConfig
from kata.run import Run
from kata.update.step import autocast

DISCRETIZED = "vqbet.action_head.vqvae_model.discretized"
"""LeRobot's mark of VQ-BeT's second phase."""


class PeerRecorder(StepRecorder):
    """A recorder that answers with a number where the host asks the device for one.

    Attributes:
        waits: times that the host asked.
    """

    def __init__(self, resident: dict[str, list[Tensor]]) -> None:
        super().__init__(resident)
        self.waits = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, and record it; answer 1 for a value that only data have."""
        if func is torch.ops.aten._local_scalar_dense.default:
            self.waits += 1
            return 1.0 if args[0].is_floating_point() else 1
        if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_):
            args = (args[0], self._without_masks(args[1]), *args[2:])
        on_host = func.overloadpacket.__name__ == "_foreach_add_" and args[0][0].dim() == 0
        if on_host:  # LeRobot's optimizers count their steps on the host
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _without_masks(self, indices: Sequence[Any]) -> list[Any]:
        """Return indices with numbers for masks; see `places_in`.

        The host asks the device how many values of a mask are True.
        """
        found: list[Any] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype == torch.bool:
                self.waits += 1
                found += [torch.zeros(self.places_in(index), dtype=torch.int64)] * index.dim()
            else:
                found.append(index)
        return found

    def places_in(self, mask: Tensor) -> int:
        """Return how many values of a mask count as True."""
        return mask.numel()


@contextmanager
def numbers_on_host(recorder: PeerRecorder) -> Generator[None]:
    """Let `Tensor.numpy` wait for the device and return zeros inside the block."""

    def zeros(tensor: Tensor, **_: object) -> np.ndarray[Any, np.dtype[np.float64]]:
        recorder.waits += 1
        return np.zeros(tensor.shape)

    with mock.patch.object(Tensor, "numpy", zeros):
        yield


def build_peer(run: Run, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return LeRobot's policy with the run's features and these options, and its optimizer."""
    factory = importlib.import_module("lerobot.policies.factory")
    types = importlib.import_module("lerobot.configs.types")

    def features(own: Any) -> dict[str, Any]:
        kinds = types.FeatureType
        return {k: types.PolicyFeature(kinds[f.type.value], f.shape) for k, f in own.items()}

    known = {name for name in vars(run.policy) if name.startswith("pretrained")}
    if isinstance(run.policy, XvlaConfig):
        # LeRobot has no sizes of Florence-2.
        options = {"florence_config": run.policy.written()["florence_config"], **options}
    config = factory.make_policy_config(
        run.policy.type,
        device="cpu",
        push_to_hub=False,
        input_features=features(run.policy.input_features),
        output_features=features(run.policy.output_features),
        **without_downloads(known),
        **options,
    )
    policy = factory.get_policy_class(run.policy.type)(config)
    marks = dict(policy.named_buffers())
    if DISCRETIZED in marks:
        marks[DISCRETIZED].fill_(True)
    optimizer = config.get_optimizer_preset().build(policy.get_optim_params())
    for group in (optimizer.defaults, *optimizer.param_groups):
        group["foreach"] = True  # torch's choice on CUDA
    policy.train()
    if isinstance(run.policy, XvlaConfig):
        # In training it asks a number for each layer whether to leave it out; none is left out.
        policy.model.vlm.language_model.encoder.training = False
    return policy, optimizer


def one_step(run: Run, policy: Any, optimizer: Any, size: int, recorder: PeerRecorder) -> None:
    """Do one update as LeRobot's trainer does."""
    assert run.optimizer is not None
    recorder.enter_phase("input")
    batch = blank_batch(run, size, recorder).micros[0]
    for key, value in batch.items():
        if key == "next.reward":
            batch[key] = value.squeeze(-1)
    for storage in recorder.alive():
        storage.part = storage.part or "inputs"
    recorder.enter_phase("forward")
    with autocast(run.precision, torch.device("cpu")), numbers_on_host(recorder):
        loss, _ = policy.forward(batch)
    recorder.end_forward()
    recorder.enter_phase("backward")
    loss.backward()
    recorder.enter_phase("optimizer")
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), run.optimizer.grad_clip_norm)
    waits = recorder.waits
    optimizer.step()
    recorder.waits = waits  # it asks for counts of steps, which are on the host
    optimizer.zero_grad()
    if run.policy.type == "tdmpc":
        policy.update()
    loss.item()
    norm.item()


def clip_without_weights(stack: ExitStack) -> None:
    """Let CLIP's classes make random weights instead of fetching them."""
    transformers: Any = importlib.import_module("transformers")
    for name, part in (("CLIPVisionModel", VISION), ("CLIPTextModel", TEXT)):
        kind = getattr(transformers, name)
        model = kind.config_class(**BASE_PATCH16[part])
        made = mock.patch.object(kind, "from_pretrained", lambda *_, k=kind, c=model, **__: k(c))
        stack.enter_context(made)


def smolvlm_without_files(stack: ExitStack) -> None:
    """Let LeRobot build the model that SmolVLA has by default, without the files of the Hub."""
    transformers: Any = importlib.import_module("transformers")
    vision, text = SMOLVLM_500M.vision, SMOLVLM_500M.text
    config = transformers.SmolVLMConfig(
        scale_factor=SMOLVLM_500M.shuffle,
        tie_word_embeddings=SMOLVLM_500M.is_tied,
        vision_config={
            "model_type": "smolvlm_vision",
            "hidden_size": vision.width,
            "intermediate_size": vision.mlp,
            "num_hidden_layers": vision.layers,
            "num_attention_heads": vision.heads,
            "image_size": vision.image,
            "patch_size": vision.patch,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": text.width,
            "intermediate_size": text.mlp,
            "num_hidden_layers": SMOLVLM_500M.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.kv_heads,
            "head_dim": text.head_dim,
            "vocab_size": SMOLVLM_500M.vocabulary,
        },
    )
    marks = SimpleNamespace(fake_image_token_id=0, global_image_token_id=1)
    found = {"AutoConfig": config, "AutoProcessor": SimpleNamespace(tokenizer=marks)}
    for name, value in found.items():
        kind = getattr(transformers, name)
        made = mock.patch.object(kind, "from_pretrained", lambda *_, v=value, **__: v)
        stack.enter_context(made)


def pi0_fast_without_tokenizers(stack: ExitStack) -> None:
    """Let LeRobot build π0-FAST without tokenizers, which a step on tokens does not ask."""
    module: Any = importlib.import_module("lerobot.policies.pi0_fast.modeling_pi0_fast")
    stack.enter_context(
        mock.patch.multiple(module, AutoProcessor=mock.Mock(), AutoTokenizer=mock.Mock())
    )


def florence_without_values(stack: ExitStack) -> None:
    """Let LeRobot build Florence-2, which reads the values of a tensor that fake ones lack."""

    def spaced(first: float, last: float, steps: int, **_: object) -> list[SimpleNamespace]:
        found: list[SimpleNamespace] = []
        for number in range(steps):
            value = first + (last - first) * number / max(steps - 1, 1)
            found.append(SimpleNamespace(item=lambda value=value: value))
        return found

    stack.enter_context(mock.patch.object(torch, "linspace", spaced))


def peer_recording(
    run: Run, size: int, options: Mapping[str, Any] | None = None
) -> tuple[Recording, int]:
    """Return the recording of a step after the first one, and the times that the host waited.

    Args:
        run: its features, precision and optimizer.
        size: samples.
        options: of LeRobot's policy beside its defaults.
    """
    with ExitStack() as stack:
        if run.policy.type == "multi_task_dit":
            clip_without_weights(stack)
        if run.policy.type == "smolvla":
            smolvlm_without_files(stack)
        if run.policy.type == "pi0_fast":
            pi0_fast_without_tokenizers(stack)
        if run.policy.type == "xvla":
            florence_without_values(stack)
        stack.enter_context(treated_as_real())
        stack.enter_context(cuda_rules())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        policy, optimizer = build_peer(run, options or {})
        state = {"weights": [*policy.parameters(), *policy.buffers()]}
        with PeerRecorder(state) as first:  # makes the optimizer's state
            one_step(run, policy, optimizer, size, first)
        state["optimizer_state"] = list(tensors_in(list(optimizer.state.values())))
        with PeerRecorder(state) as recorder:
            one_step(run, policy, optimizer, size, recorder)
            return recorder.recording, recorder.waits


def main() -> int:
    """Print the counts of the step that the arguments ask for."""
    policy, size, precision = sys.argv[1:4]
    recording, waits = peer_recording(step_run(policy, precision), int(size))
    version = importlib.import_module("importlib.metadata").version("lerobot")
    print(json.dumps({**counts_of(recording), "host_waits": waits, "lerobot": version}))
    return 0


def counts_of(recording: Recording) -> dict[str, Any]:
    """Return launches by phase, floating-point operations, and bytes saved for the backward."""
    launches = dict.fromkeys(recording.begins, 0)
    kinds: dict[str, int] = {}
    flops = 0
    for operation in recording.operations:
        launches[operation.phase] += operation.launches
        if operation.phase != "input":
            kinds[operation.name] = kinds.get(operation.name, 0) + operation.launches
        flops += operation.flops
    saved = 0
    for storage in recording.storages:
        if storage.part in ("activations", "cast_weights"):
            saved += storage.size_bytes
    return {"launches": launches, "flops": flops, "saved_bytes": saved, "by_name": kinds}


if __name__ == "__main__":
    raise SystemExit(main())

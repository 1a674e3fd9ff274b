"""LoRA: the formula, what is trained, and adapters that are saved, loaded, merged and resumed."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file

from kata.errors import ConfigError, KataError, PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.finetune import lora
from kata.finetune.lora import adapt, adapted, merge_adapters
from kata.finetune.weights import load_policy
from kata.policies import build_policy, config_class
from kata.run.peft import PeftConfig
from kata.spec import Feature, FeatureType
from kata.train import train
from kata.train.preflight import adapter_facts
from kata.train.stopping import StopSignal
from tests.finetune.conftest import write_base
from tests.plan.small import VECTORS, small_run

peft = pytest.importorskip("peft")

LORA = ("--peft.r=2", "--ema.enable=true")


def observation(size=3):
    stream = torch.Generator().manual_seed(3)
    return {key: torch.randn(size, *f.shape, generator=stream) for key, f in VECTORS.items()}


def loss_of(policy, seed=0):
    stream = torch.Generator().manual_seed(seed)
    action = torch.randn(3, 5, 2, generator=stream)
    pad = torch.zeros(3, 5, dtype=torch.bool)
    terms = policy({**observation(), "action": action, "action_is_pad": pad}).terms
    return sum(term.total for term in terms.values())


@pytest.fixture
def policy(base):
    found = build_policy(small_run().policy)
    load_policy(found, base)
    return found


def test_a_new_adapter_adds_nothing_and_trains_as_many_numbers_as_counted(policy):
    before = policy.predict_chunk(observation())
    shapes = {
        name: (module.in_features, module.out_features)
        for name, module in policy.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith("_attn.out_proj")
    }
    adapt(policy, PeftConfig(r=3))
    assert sorted(adapted(policy)) == sorted(shapes)
    assert torch.equal(policy.predict_chunk(observation()), before)
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    assert trained == sum(3 * (into + out) for into, out in shapes.values())


def test_every_adapter_gets_a_gradient_that_is_the_formulas(policy):
    """Of y = W x + alpha / r B A x the gradient of B is alpha / r dL/dW A^T: with full rank, A the
    identity and B zero, an adapter learns what the weight would.
    """
    policy.eval().requires_grad_(True)
    loss_of(policy).backward()
    wanted = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    adapt(policy, PeftConfig(r=64, lora_alpha=32))
    for name in adapted(policy):
        layer = policy.get_submodule(name)
        with torch.no_grad():
            layer.lora_A["default"].weight.copy_(
                torch.eye(64)[:, : layer.in_features]
                if layer.in_features <= 64
                else torch.randn(64, layer.in_features)
            )
    loss_of(policy).backward()
    for name in adapted(policy):
        layer = policy.get_submodule(name)
        if f"{name}.weight" not in wanted:
            assert layer.lora_B["default"].weight.grad is None, name
            continue
        full = wanted[f"{name}.weight"] @ layer.lora_A["default"].weight.T * (32 / 64)
        torch.testing.assert_close(layer.lora_B["default"].weight.grad, full)
    frozen = [p for n, p in policy.named_parameters() if ".lora_" not in n]
    assert not any(p.requires_grad or p.grad is not None for p in frozen)


def test_smolvlas_own_targets_are_lerobots_at_full_size():
    """LeRobot 0.6.1 with rank 16 trains 742,656 numbers in 37 modules."""
    full = config_class("smolvla")(
        input_features={
            "observation.state": Feature(FeatureType.STATE, (6,)),
            "observation.images.top": Feature(FeatureType.VISUAL, (3, 480, 640)),
        },
        output_features={"action": Feature(FeatureType.ACTION, (6,))},
    )
    with torch.device("meta"):
        policy = build_policy(full)
        adapt(policy, PeftConfig(r=16))
    names = [lora.lerobot_name(policy, name) for name in adapted(policy)]
    assert len(names) == 37
    assert "model.vlm_with_expert.lm_expert.layers.3.self_attn.v_proj" in names
    assert sum(p.numel() for p in policy.parameters() if p.requires_grad) == 742_656
    facts = adapter_facts(policy, PeftConfig(r=16))
    assert facts[0] == (
        "adapter",
        "LoRA of rank 16 and alpha 16 (scale 1), 742,656 numbers in 37 linear maps",
    )
    assert ("", "model.vlm_with_expert.lm_expert.layers.{0-15}.self_attn.q_proj") in facts
    with torch.device("meta"):
        inside = PeftConfig(target_modules=["text_model.layers.0.self_attn.q_proj"])
        with pytest.raises(PolicyError, match="keeps frozen") as caught:
            adapt(build_policy(full), inside)
    assert "--policy.train_expert_only=false" in str(caught.value)


@pytest.mark.parametrize("name", ["tdmpc", "vqbet"])
def test_policies_that_change_weights_without_gradients_are_refused(name):
    inputs = VECTORS
    if name == "vqbet":
        camera = {"observation.image": Feature(FeatureType.VISUAL, (3, 96, 96))}
        inputs = {"observation.state": VECTORS["observation.state"], **camera}
    action = {"action": Feature(FeatureType.ACTION, (2,))}
    config = config_class(name)(input_features=inputs, output_features=action)
    config = config.without_downloads()
    with torch.device("meta"), pytest.raises(PolicyError, match="without gradients"):
        adapt(build_policy(config), PeftConfig())


def test_alpha_is_the_rank_unless_it_is_given():
    assert (PeftConfig(r=16).alpha, PeftConfig(r=16, lora_alpha=8).alpha) == (16, 8)


def test_a_resumed_adapter_equals_a_straight_one_byte_for_byte(tuned, base, monkeypatch, tmp_path):
    straight = train(tuned("straight", *LORA)).state
    answers = iter([False, False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(tuned("half", *LORA)).state.step == 2
    resumed = train(tuned_again(tmp_path / "half")).state
    for before, after in ((straight.policy, resumed.policy), (straight.ema, resumed.ema)):
        for key, tensor in before.state_dict().items():
            assert torch.equal(after.state_dict()[key], tensor), key
    whole = load_file(base / "model.safetensors")
    for name, tensor in straight.policy.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(tensor, whole[name.replace(".base_layer", "")]), name
    for name in straight.constant:
        shared = straight.ema.get_parameter(name).data_ptr()
        assert shared == straight.policy.get_parameter(name).data_ptr()


def tuned_again(folder):
    from kata.run import resolve_run

    return resolve_run([f"--config={folder}/train_config.json", "--resume=true"])[0]


@pytest.fixture(scope="session")
def adapter(tmp_path_factory, base, vector_dataset):
    """The state of a trained adapter, and its folder."""
    from kata.run import resolve_run

    folder = tmp_path_factory.mktemp("tuned") / "run"
    run, _ = resolve_run(
        [
            f"--policy.path={base}", "--policy.push_to_hub=false", "--policy.device=cpu",
            "--peft.r=2", "--peft.full_training_modules=[action_head]", "--steps=3",
            "--batch_size=4", "--log_freq=1", "--num_workers=1",
            f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors",
            f"--output_dir={folder}", "--optimizer.lr=0.01",
        ]
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        from tests.conftest import undrawn_charts

        undrawn_charts(patch)
        state = train(run).state
    return state, folder / "checkpoints" / "last" / "pretrained_model"


def test_a_checkpoint_is_the_adapter_alone_in_pefts_files(adapter, base):
    state, folder = adapter
    found = load_file(folder / "adapter_model.safetensors")
    assert not (folder / "model.safetensors").exists()
    assert len(found) == sum(p.requires_grad for p in state.policy.parameters())
    assert "base_model.model.model.action_head.weight" in found
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 2, "LORA")
    assert config["base_model_name_or_path"] == str(base)
    assert config["modules_to_save"] == ["model.action_head"]
    assert json.loads((folder / "config.json").read_text())["use_peft"] is True


def test_what_acts_is_what_was_trained_and_what_is_merged(adapter, tmp_path):
    from kata.train.checkpoint.command import export
    from kata.train.checkpoint.options import ExportOptions

    state, folder = adapter
    wanted = state.policy.eval().predict_chunk(observation())
    loaded = load_for_acting(str(folder), "cpu").policy
    assert torch.equal(loaded.predict_chunk(observation()), wanted)
    export(ExportOptions(path=str(folder), out=str(tmp_path / "merged"), merge=True))
    merged = load_for_acting(str(tmp_path / "merged"), "cpu").policy
    assert not adapted(merged)
    torch.testing.assert_close(merged.predict_chunk(observation()), wanted, rtol=0, atol=1e-6)
    merge_adapters(loaded)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(merged.state_dict()[name], tensor), name
    plain = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert plain["use_peft"] is False
    files = {path.name for path in (tmp_path / "merged").iterdir()}
    assert not files & {"adapter_model.safetensors", "adapter_config.json", "base.json"}


def test_training_goes_on_from_an_adapter(adapter, tuned, state_of, base):
    state, folder = adapter
    run = tuned("more", path=folder)
    assert (run.peft.r, run.peft.alpha) == (2, 2)
    begun = state_of(run).policy
    for name, tensor in state.policy.state_dict().items():
        assert torch.equal(begun.state_dict()[name], tensor), name
    assert begun.reference.path == str(base)


def test_an_adapter_of_another_base_is_refused(adapter, tmp_path, base):
    _, folder = adapter
    other = tmp_path / "other"
    write_base(other, small_run().policy, seed=1)
    copy = copied(folder, tmp_path / "copy", base=other)
    with pytest.raises(KataError, match="was trained on other weights"):
        load_for_acting(str(copy), "cpu")
    (copy / "base.json").unlink()  # peft's own files name no digest: shapes are compared
    load_for_acting(str(copy), "cpu")
    wide = tmp_path / "wide"
    write_base(wide, small_run(options={"dim_feedforward": 96}).policy)
    with pytest.raises(PolicyError, match="of another shape") as caught:
        load_for_acting(str(copied(folder, tmp_path / "second", base=wide, digest=False)), "cpu")
    assert str(caught.value).count("of another shape: ") == 4, "all in one table"
    with pytest.raises(KataError, match=r"its base .*gone is not there"):
        load_for_acting(str(copied(folder, tmp_path / "third", base=tmp_path / "gone")), "cpu")


def copied(folder, target, *, base, digest=True):
    """Copy an adapter whose base is another one; the policy's config becomes that of the base."""
    import shutil

    shutil.copytree(folder, target)
    config = json.loads((target / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base)
    (target / "adapter_config.json").write_text(json.dumps(config))
    plain = json.loads((target / "base.json").read_text())
    (target / "base.json").write_text(json.dumps({**plain, "path": str(base)}))
    if not digest:
        (target / "base.json").unlink()
    if (base / "config.json").exists():
        own = json.loads((base / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**own, "use_peft": True}))
    return target


def test_bad_options_are_refused_in_one_message(tuned, state_of, monkeypatch, adapter):
    with pytest.raises(PolicyError, match="fits no module") as caught:
        state_of(tuned("a", "--peft.target_modules=[q_prj]"))
    assert "linear1" in str(caught.value)
    with pytest.raises(PolicyError, match="is no linear map"):
        state_of(tuned("b", "--peft.target_modules=[norm1]"))
    with pytest.raises(PolicyError, match="full_training_modules=heads"):
        state_of(tuned("c", "--peft.full_training_modules=[heads]"))
    with pytest.raises(ConfigError, match="with options of peft"):
        tuned("d", "--peft.r=4", path=adapter[1])
    with pytest.raises(ConfigError, match="checkpoint_format=dcp with peft"):
        tuned("e", "--peft.r=4", "--checkpoint_format=dcp")
    monkeypatch.setitem(lora.sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="need the package peft") as missing:
        state_of(tuned("f", "--peft.r=4"))
    assert "uv pip install 'kata[peft]'" in str(missing.value)


def test_an_adapter_needs_a_base(tiny_run):
    with pytest.raises(ConfigError, match=r"peft without policy\.path"):
        tiny_run("--peft.r=4")
    with pytest.raises(ConfigError, match="use_peft=true without"):
        tiny_run("--policy.use_peft=true")


def test_a_damaged_adapter_is_named_by_its_own_files(adapter, tuned, tmp_path, base):
    copy = copied(adapter[1], tmp_path / "copy", base=base)
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(KataError, match=r"adapter_model\.safetensors"):
        load_for_acting(str(copy), "cpu")
    file = copy / "adapter_config.json"
    whole = json.loads(file.read_text())
    for name in ("r", "target_modules"):
        file.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        with pytest.raises(PolicyError, match=f"has no {name}"):
            load_for_acting(str(copy), "cpu")
        with pytest.raises(PolicyError, match=f"has no {name}"):
            tuned("a", path=copy)


def test_the_library_of_4_bits_says_nothing_where_nothing_is_in_4_bits(caplog):
    lora.peft_library()
    said = logging.getLogger("bitsandbytes.backends.cpu.ops")
    said.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "absent")
    said.warning("another line")
    assert caplog.messages == ["another line"]

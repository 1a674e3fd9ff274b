"""`kata plan` on a small policy: its table, its JSON, and what it refuses."""

import json

import pytest

from kata.cli import main
from kata.errors import ConfigError, PolicyError
from kata.launch.planning.options import DescribedDataset, split_args
from kata.launch.planning.subject import described
from kata.plan.catalogue import known_gpus
from kata.plan.profiles import Profile, keep_profile
from kata.plan.tracing.trace import trace_step
from kata.policies.act.model import Policy
from kata.run import resolve_run

SMALL = (
    *("--policy.type=act", "--policy.dim_model=64", "--policy.dim_feedforward=64"),
    *("--policy.n_heads=2", "--policy.n_encoder_layers=1", "--policy.n_vae_encoder_layers=1"),
    *("--policy.chunk_size=5", "--policy.n_action_steps=5"),
)
DATA = (
    *("--dataset.frames=4000", "--dataset.cameras=1x64x64", "--dataset.state_dim=3"),
    *("--dataset.action_dim=2", "--dataset.fps=30", "--dataset.episodes_count=10"),
)


@pytest.fixture(autouse=True, scope="module")
def one_trace(small_trace, tmp_path_factory):
    """A cache folder, and one small trace for whatever is asked: tracing has its own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("kata.plan.tracing.trace.trace_step", lambda run, device: small_trace)
        yield


def planned(capsys, *args):
    assert main(["plan", *SMALL, *DATA, *args]) == 0
    return capsys.readouterr().out


def test_json_has_every_part_with_its_unit(capsys):
    found = json.loads(planned(capsys, "--gpu=rtx4090", "--batch_size=8", "--json"))
    memory = found["memory"]
    parts = [name for name in memory if name.endswith("_bytes")]
    rest = {"peak_bytes", "margin_bytes"}
    assert memory["peak_bytes"] == sum(memory[name] for name in parts if name not in rest)
    assert memory["fits"]
    assert found["steps_per_epoch"] == 500
    assert found["training"]["5_epochs"]["steps"] == 2500
    span = found["run"]
    assert span["wall_clock_low_s"] < span["wall_clock_s"] < span["wall_clock_high_s"]
    assert found["batch"]["largest_micro_batch_samples"] > 8
    assert found["step"]["binds"] in ("compute", "launch", "communication", "data")
    assert found["data"]["needed_frames_per_s"] > 0
    assert found["data"]["dataset_bytes"] > 0


def test_the_table_names_the_same(capsys):
    text = planned(capsys, "--flavor=l4x1", "--batch_size=8")
    for word in ("fits:", "largest batch", "bound by", "steps per epoch", "$", "checkpoint"):
        assert word in text


def test_a_cache_takes_disk(capsys):
    assert "cache" not in planned(capsys, "--gpu=l4")
    found = json.loads(planned(capsys, "--gpu=l4", "--dataset.cache=disk", "--json"))
    assert found["data"]["cache_bytes"] == 4000 * 3 * 64 * 64
    text = planned(capsys, "--gpu=l4", "--dataset.cache=disk")
    assert "dataset 1.0 MiB, cache of frames 46.9 MiB" in text
    assert "46.9 MiB for the cache" in planned(capsys, "--gpu=l4", "--dataset.cache=frames")


def test_an_automatic_batch_is_the_largest_that_fits(capsys):
    most = json.loads(planned(capsys, "--gpu=rtx3060", "--batch_size=1", "--json"))["batch"]
    size = most["largest_micro_batch_samples"]
    found = json.loads(planned(capsys, "--gpu=rtx3060", "--batch_size=auto", "--json"))["batch"]
    assert found["micro_batch_samples"] == min(size, 4000)


def test_several_gpus_share_a_global_batch(capsys):
    found = json.loads(planned(capsys, "--gpu=a100", "--gpus=4", "--nodes=2", "--json"))
    assert found["machine"]["gpus"] == 8
    assert found["batch"]["global_batch_samples"] == 64
    assert found["memory"]["communication_bytes"] > 0
    assert found["step"]["communication_s"] > 0


def test_what_does_not_fit_comes_with_changes_that_do(capsys):
    large = ("--dataset.frames=4000000", "--batch_size=1000000")
    found = json.loads(planned(capsys, "--gpu=rtx3060", *large, "--json"))
    assert not found["memory"]["fits"]
    assert found["memory"]["margin_bytes"] < 0
    assert found["remedies"]
    for remedy in found["remedies"]:
        room = next((gpu for gpu in known_gpus() if f"--gpu={gpu}" in remedy["flags"]), "rtx3060")
        assert remedy["peak_bytes"] <= known_gpus()[room].memory_bytes
    first = found["remedies"][0]["flags"]
    assert "--accelerator.gradient_accumulation.steps" in first
    # The change is believed: planned with it, the run fits.
    assert main(["plan", *SMALL, *DATA, large[0], "--gpu=rtx3060", *first.split()]) == 0
    assert "memory           fits" in capsys.readouterr().out


def test_auto_takes_the_cheapest_machine_that_fits(capsys):
    found = json.loads(planned(capsys, "--gpu=auto", "--json"))
    assert found["memory"]["fits"]
    assert found["run"]["price_usd"] > 0


def test_a_comparison_has_a_row_for_each(capsys):
    found = json.loads(planned(capsys, "--gpu=rtx4090", "--compare", "--json"))["comparison"]
    assert {each["precision"] for each in found} == {"no", "bf16"}
    sizes = {each["batch"]["micro_batch_samples"] for each in found}
    assert sizes == {4, 8, 16, 32}
    text = planned(capsys, "--gpu=rtx4090", "--compare")
    assert len(text.splitlines()) == 1 + len(found)


def test_a_picture_is_drawn(capsys, tmp_path):
    planned(capsys, "--gpu=l4", f"--picture={tmp_path / 'plan.png'}")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--dataset.frames=0",), "at least 1"),
        (("--dataset.frames=5", "--dataset.episodes_count=9"), "at least one frame"),
        (("--dataset.root=/tmp/x",), "either exists or is described"),
        (("--dataset.cameras=480x640",), "2x480x640"),
        (("--gpu=rtx4095",), "rtx4090"),
        (("--gpu=l4", "--flavor=l4x1"), "a flavor has its own GPU"),
        (("--gpu=t4", "--accelerator.mixed_precision=bf16"), "no bf16"),
        (("--flavor=l4x3",), "l4x"),
        (("--batch_size=9000",), "no larger than the dataset"),
        (("--picture=plan.jpg",), "ends in .png"),
    ],
)
def test_bad_input_is_one_message(capsys, args, words):
    assert main(["plan", *SMALL, *DATA, "--gpu=l4" if "--flavor" not in str(args) else "--gpus=1",
                 *args]) == 2  # fmt: skip
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_description_must_be_whole():
    with pytest.raises(ConfigError, match=r"without dataset\.action_dim"):
        split_args(["--dataset.frames=100"])
    with pytest.raises(ConfigError, match=r"without dataset\.frames"):
        split_args(["--dataset.action_dim=2"])


def test_features_that_contradict_the_description_are_refused(capsys):
    own = '--policy.output_features={"action": {"type": "ACTION", "shape": [7]}}'
    assert main(["plan", *SMALL, *DATA, "--gpu=l4", own]) == 2
    assert "the description gives" in capsys.readouterr().err


def measured_profile(torch):
    """A profile of an L4 that some version of torch has measured."""
    rates = dict.fromkeys(("gemm_flop_s", "convolution_flop_s", "bytes_s"), 1e12)
    times = {"kernel_s": 3e-6, "launch_s": 7e-6}
    sizes = {"memory_bytes": 24 * 10**9, "context_bytes": 300_000_000}
    named = {"device": "l4", "precision": "no", "torch": torch, "driver": "", "threads": 1}
    return Profile(**named, **rates, **times, **sizes)


def test_a_profile_of_another_torch_is_used_with_a_wider_interval(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    keep_profile(measured_profile("1.0"))
    found = json.loads(planned(capsys, "--gpu=l4", "--json"))
    assert "torch 1.0" in found["notes"][0]
    assert found["machine"]["is_calibrated"]
    assert found["memory"]["cuda_context_bytes"] == 300_000_000
    low, high = (found["run"][f"wall_clock_{end}_s"] for end in ("low", "high"))
    assert high / low == pytest.approx(1.2 / 0.8)


def test_a_damaged_profile_is_named_and_left_out(capsys, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    path = keep_profile(measured_profile("1.0"))
    path.write_text('{"device": ', encoding="utf-8")
    found = json.loads(planned(capsys, "--gpu=l4", "--json"))
    assert not found["machine"]["is_calibrated"]
    assert str(path) in caplog.text


def test_a_step_that_cannot_be_traced_names_the_operation(capsys, monkeypatch, tmp_path):
    forward = Policy.forward

    def looking(self, batch, **draws):
        batch["action"].nonzero()
        return forward(self, batch, **draws)

    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    monkeypatch.setattr("kata.plan.tracing.trace.trace_step", trace_step)
    monkeypatch.setattr(Policy, "forward", looking)
    assert main(["plan", *SMALL, *DATA, "--gpu=l4"]) == 2
    error = capsys.readouterr().err
    assert "nonzero" in error
    assert "masks" in error
    assert "Traceback" not in error


def test_a_description_fits_a_base_as_its_data_will():
    """Frames of another size are fitted and vectors padded; the base's cameras keep their names."""
    inputs = {
        "observation.state": {"type": "STATE", "shape": [6]},
        "observation.images.top": {"type": "VISUAL", "shape": [3, 256, 256]},
        "observation.images.wrist": {"type": "VISUAL", "shape": [3, 256, 256]},
    }
    options = [
        "--policy.type=smolvla", f"--policy.input_features={json.dumps(inputs)}",
        '--policy.output_features={"action": {"type": "ACTION", "shape": [6]}}',
        "--dataset.repo_id=a/b",
    ]  # fmt: skip
    run, _ = resolve_run(options)
    data = {"frames": 4000, "state_dim": 14, "action_dim": 14, "fps": 30.0, "episodes_count": 10}
    found, size = described(run, DescribedDataset(cameras="2x480x640", **data))
    assert {key: each.shape for key, each in found.policy.input_features.items()} == {
        "observation.state": (14,),
        "observation.images.top": (3, 480, 640),
        "observation.images.wrist": (3, 480, 640),
    }
    assert found.policy.action.shape == (14,)
    assert size.frames == 4000
    act, _ = resolve_run(["--policy.type=act", *options[1:]])
    with pytest.raises(PolicyError, match=r"wants observation\.state \(6,\), action \(6,\), and"):
        described(act, DescribedDataset(cameras="2x480x640", **data))

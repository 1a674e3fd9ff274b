import json

import pytest
import torch

from kata.errors import CheckpointError
from kata.policies.act.config import Config
from kata.policies.pipelines import canonical_pipelines
from kata.processors import load_pipeline
from kata.processors.pipeline import POSTPROCESSOR, PREPROCESSOR
from tests.processors.test_steps import FEATURES, batch, stats


def pair():
    inputs = {k: f for k, f in FEATURES.items() if k != "action"}
    config = Config(input_features=inputs, output_features={"action": FEATURES["action"]})
    return canonical_pipelines(
        config,
        stats(),
        rename_map={"observation.images.front": "observation.images.top"},
        device="cpu",
    )


def test_what_is_saved_is_lerobots_form(tmp_path):
    for pipeline in pair():
        pipeline.save(tmp_path)
    before = json.loads((tmp_path / "policy_preprocessor.json").read_text())
    after = json.loads((tmp_path / "policy_postprocessor.json").read_text())
    assert [s["registry_name"] for s in before["steps"]] == [
        "rename_observations_processor", "to_batch_processor", "device_processor", "normalizer_processor",  # noqa: E501
    ]  # fmt: skip
    assert [s["registry_name"] for s in after["steps"]] == [
        "unnormalizer_processor",
        "device_processor",
    ]
    assert (
        before["steps"][3]["state_file"]
        == "policy_preprocessor_step_3_normalizer_processor.safetensors"
    )
    assert set(before["steps"][3]["config"]) == {"eps", "features", "norm_map"}
    assert before["steps"][2]["config"] == {"device": "cpu", "float_dtype": None}
    assert after["steps"][1]["config"]["device"] == "cpu"
    assert (tmp_path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors").is_file()


def test_loaded_pipelines_compute_the_same(tmp_path):
    before, after = pair()
    before.save(tmp_path)
    after.save(tmp_path)
    given = batch()
    given["observation.images.front"] = given.pop("observation.images.top")
    done, again = before(given), load_pipeline(tmp_path, PREPROCESSOR)(given)
    assert done.keys() == again.keys()
    assert all(torch.equal(done[k], again[k]) for k in FEATURES)
    assert torch.equal(
        load_pipeline(tmp_path, POSTPROCESSOR)(done)["action"], after(done)["action"]
    )


def test_training_and_acting_see_equal_tensors():
    """A batch of the training path, and each of its samples as a robot hands them over one by
    one.
    """
    before, _ = pair()
    given = batch()
    given["observation.images.front"] = given.pop("observation.images.top")
    trained = before(given)
    for i in range(6):
        one = {k: v[i] for k, v in given.items() if k.startswith("observation") or k == "task"}
        acted = before(one)
        for key in ("observation.state", "observation.images.top"):
            assert torch.equal(acted[key][0], trained[key][i])


def test_overrides_replace_options_and_unmatched_ones_are_refused(tmp_path):
    pair()[0].save(tmp_path)
    loaded = load_pipeline(
        tmp_path, PREPROCESSOR, {"rename_observations_processor": {"rename_map": {"a": "b"}}}
    )
    assert loaded.steps[0].rename_map == {"a": "b"}
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_pipeline(tmp_path, PREPROCESSOR, {"tokenizer_processor": {}})


def edit(folder, change):
    path = folder / "policy_preprocessor.json"
    plain = json.loads(path.read_text())
    change(plain["steps"])
    path.write_text(json.dumps(plain))


BREAKS = {
    "state file left out": (lambda s: s[3].pop("state_file"), "mean"),
    "state file elsewhere": (lambda s: s[3].update(state_file="../x.safetensors"), "outside"),
    "state file absent": (lambda s: s[3].update(state_file="x.safetensors"), "x.safetensors"),
    "unknown step": (
        lambda s: s[0].update(registry_name="rename_observation_processor"),
        "did you mean",
    ),
    "unknown option": (lambda s: s[1].update(config={"x": 1}), "to_batch_processor"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_damaged_checkpoint_is_refused(tmp_path, name):
    pair()[0].save(tmp_path)
    change, expected = BREAKS[name]
    edit(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        load_pipeline(tmp_path, PREPROCESSOR)
    assert expected in str(caught.value)


def test_an_absent_or_unreadable_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="migrate"):
        load_pipeline(tmp_path, PREPROCESSOR)
    (tmp_path / "policy_preprocessor.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        load_pipeline(tmp_path, PREPROCESSOR)

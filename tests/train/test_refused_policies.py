"""What a policy cannot be trained on is refused before step 1, with value, rule and remedy, and
leaves nothing.
"""

import json

import pytest

from kata.errors import PolicyError
from kata.run import resolve_run
from kata.train import train

TOP, WRIST = "observation.images.top", "observation.images.wrist"
VIEWS = {TOP: [3, 48, 64], WRIST: [3, 32, 32]}


def inputs(*cameras):
    """The option that chooses cameras beside the state."""
    kept = {key: {"type": "VISUAL", "shape": VIEWS[key]} for key in cameras}
    return f"--policy.input_features={json.dumps(kept | {'observation.state': {'type': 'STATE', 'shape': [3]}})}"  # noqa: E501


PLAIN = "--policy.pretrained_backbone_weights=null"
CLIP = (
    "--policy.vision_encoder_name={clip}",
    "--policy.text_encoder_name={clip}",
    "--policy.pretrained_encoders=false",
)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("diffusion", (inputs(TOP), PLAIN, "--policy.horizon=36"), "a multiple of 8"),
        (
            "diffusion",
            (inputs(TOP), PLAIN, "--policy.crop_shape=[49,64]"),
            "no larger than the picture",
        ),
        (
            "vqbet",
            (inputs(TOP), PLAIN, "--policy.crop_shape=[48,65]"),
            "no larger than the picture",
        ),
        (
            "multi_task_dit",
            (inputs(TOP), *CLIP, "--policy.image_crop_shape=[65,32]"),
            "no larger than the picture",
        ),
        ("diffusion", (inputs(TOP, WRIST), PLAIN), "cameras of one size"),
        (
            "multi_task_dit",
            (inputs(TOP, WRIST), *CLIP, "--policy.image_crop_shape=[32,32]"),
            "cameras of one size",
        ),
        ("vqbet", (inputs(TOP, WRIST), PLAIN), "one camera"),
        (
            "multi_task_dit",
            (
                inputs(TOP),
                "--policy.image_crop_shape=[32,32]",
                *CLIP[::2],
                "--policy.text_encoder_name=./no/clip",
            ),
            "no such folder",
        ),
    ],
)
def test_it_is_refused_before_the_first_step(
    name, options, said, tiny_dataset, tiny_clip, tmp_path
):
    args = [option.replace("{clip}", str(tiny_clip)) for option in options]
    args += [
        f"--policy.type={name}",
        "--dataset.repo_id=tests/tiny",
        f"--dataset.root={tiny_dataset}",
        "--batch_size=4",
    ]
    args += [
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--steps=30000",
        f"--output_dir={tmp_path}/run",
    ]
    with pytest.raises(PolicyError, match=said) as caught:
        train(resolve_run(args)[0])
    assert "rule:" in str(caught.value)
    assert "remedy:" in str(caught.value)
    assert not (tmp_path / "run").exists()

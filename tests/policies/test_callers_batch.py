"""Training and predicting leave the caller's batch as it was; LeRobot's policies take keys out
and put some in.
"""

import pytest
import torch

from kata.policies import build_policy
from tests.policies import test_diffusion, test_multi_task_dit, test_vqbet


@pytest.mark.parametrize("name", ["diffusion", "multi_task_dit", "vqbet"])
def test_the_batch_is_left_alone(name, tiny_clip):
    if name == "multi_task_dit":
        policy = build_policy(test_multi_task_dit.config(tiny_clip))
        given = test_multi_task_dit.batch(policy.config)
    elif name == "vqbet":
        policy = build_policy(test_vqbet.config())
        given = test_vqbet.batch()
    else:
        policy = build_policy(test_diffusion.config())
        given = test_diffusion.batch(policy)
    before = {key: value.clone() for key, value in given.items()}
    policy.train()(given)
    policy.predict_chunk(given)
    assert given.keys() == before.keys()
    assert all(torch.equal(given[key], value) for key, value in before.items())

"""Plans against public figures; `benchmarks/plan_guide.py` says which, and keeps all of them."""

import pytest

from benchmarks import plan_guide

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """One cache folder: each policy is traced once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    "rows", ["update_rows", "scaling_rows", "libero_rows", "resnet_rows"], ids=lambda name: name
)
def test_physics_gives_the_measured_figures(rows):
    found = plan_guide.__dict__[rows]()
    assert [row for row in found if row["inside"] != "yes"] == []


def test_the_scenarios_of_act_on_cuda_are_inside():
    found = plan_guide.wall_clock_rows()
    inside = [row for row in found if row["inside"] == "yes"]
    assert {(row["gpu"], row["policy"]) for row in inside} >= {
        (gpu, "act") for gpu in ("rtx4090", "rtx3090", "l4", "a10g")
    }


def test_memory_is_in_the_range_of_each_group():
    found = {row["policy"]: row["inside"] for row in plan_guide.memory_rows()}
    assert all(found[policy] == "yes" for policy in ("act", "diffusion", "multi_task_dit", "tdmpc"))

"""The catalogue of GPUs, and names that are not in it."""

import pytest

from kata.errors import ConfigError
from kata.launch.flavors import known_flavors
from kata.plan.catalogue import GIGA, LINKS, MIB, gpu_named, gpu_of_device, known_gpus


def test_every_figure_has_a_source_and_every_link_exists():
    found = known_gpus()  # reading refuses a figure without a source
    assert len(found) >= 20
    for gpu in found.values():
        assert gpu.link in LINKS
        assert gpu.fp32_flop_s <= gpu.tf32_flop_s <= gpu.half_flop_s


def test_published_figures_are_right():
    l4, rtx4090 = gpu_named("l4"), gpu_named("rtx4090")
    assert l4.bytes_s == 300 * GIGA  # a public table says 3350
    assert rtx4090.half_flop_s == 165.2e12  # another says 82.6
    assert not gpu_named("t4").has_bf16


@pytest.mark.parametrize("name", ["RTX 4090", "rtx-4090", "4090", "NVIDIA GeForce RTX 4090"])
def test_spellings_of_a_name_are_one(name):
    assert gpu_named(name).name == "rtx4090"


def test_an_unknown_gpu_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as refused:
        gpu_named("rtx4095")
    assert "rtx4090" in refused.value.remedy
    assert "auto" in refused.value.rule


@pytest.mark.parametrize(
    ("device", "memory_mib", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 81251, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 81251, "a100-80gb-pcie"),
        ("NVIDIA A100-SXM4-40GB", 40536, "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA GeForce RTX 3090", 24268, "rtx3090"),
        ("Tesla T4", 15109, "t4"),
        ("NVIDIA L40S", 45488, "l40s"),
        ("NVIDIA L4", 23034, "l4"),
    ],
)
def test_names_of_devices_are_found(device, memory_mib, name):
    found = gpu_of_device(device, memory_mib * MIB)
    assert found is not None
    assert found.name == name


def test_an_unknown_device_is_none():
    assert gpu_of_device("Some Accelerator 9", 10 * MIB) is None


def test_every_flavor_with_a_gpu_has_one_of_the_catalogue():
    for flavor in known_flavors().values():
        if flavor.gpus:
            assert gpu_named(flavor.gpu).name

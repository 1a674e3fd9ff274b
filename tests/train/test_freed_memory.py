"""Memory kept between steps on a CPU, and given back afterwards."""

import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
import torch
from kata.train.model.freed_memory import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(12 * 2**20)  # 48 MB: above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

usual, began = faults(), resident()
with freed_memory_kept(torch.device(sys.argv[1])):
    faults()
    kept = faults()
    held = resident() - began
print(usual, kept, held, resident() - began)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("device", "is_kept"), [("cpu", True), ("meta", False)])
def test_memory_is_kept_inside_where_a_cpu_computes(device, is_kept):
    line = [sys.executable, "-c", MEASURE, device]
    said = subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout
    usual, kept, held, after = map(int, said.split())
    if usual < 1000:
        pytest.skip("this C library keeps large memory by itself")
    assert (kept < usual / 4) == is_kept
    assert (held > 40 * 2**20) == is_kept
    assert after < 16 * 2**20

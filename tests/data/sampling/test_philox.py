import numpy as np
import pytest

from kata.data.sampling.philox import draw, philox
from kata.spec import Draw

# Random123's known answers for philox4x32-10.
KNOWN = [
    (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (0xFFFFFFFF, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_generator_gives_the_papers_known_answers(counter, key, words):
    found = philox(np.full((1, 4), counter, dtype=np.uint64), (key, key))
    assert found[0].tolist() == list(words)


NOISE = Draw("normal", (3, 5))


def test_a_samples_numbers_do_not_depend_on_its_batch():
    positions = np.array([3, 99, 4, 2**40])
    together = draw(1000, positions, "noise", NOISE)
    apart = np.concatenate([draw(1000, positions[i : i + 1], "noise", NOISE) for i in range(4)])
    assert together.shape == (4, 3, 5)
    assert (together == apart).all()


def test_seed_position_and_purpose_each_give_other_numbers():
    at = np.array([7])
    base = draw(1, at, "noise", NOISE)
    for other in (
        draw(2, at, "noise", NOISE),
        draw(1, at + 1, "noise", NOISE),
        draw(1, at, "time", NOISE),
    ):
        assert not np.intersect1d(base, other).size


def test_the_numbers_are_distributed_as_they_say():
    normal = draw(0, np.arange(40_000), "n", Draw("normal", (6,))).astype(np.float64)
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs(np.corrcoef(normal.T) - np.eye(6)).max() < 0.02
    uniform = draw(0, np.arange(40_000), "u", Draw("uniform", (2,)))
    assert 0 < uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01

"""A run with a frame cache is the same run, and so is its continuation with another cache."""

import pytest
import torch

from kata.data.frames.frame_cache import FrameCache
from kata.errors import ConfigError
from kata.train import train


def test_a_cache_changes_no_weight_and_may_change_on_a_resume(tiny_run, tmp_path, monkeypatch):
    fetched: list[int] = []
    fetch = FrameCache.fetch

    def counted(cache, key, rows, out, *places):
        missing = fetch(cache, key, rows, out, *places)
        fetched.append(len(rows) - int(missing.sum()))
        return missing

    monkeypatch.setattr(FrameCache, "fetch", counted)
    plain = train(
        tiny_run("--dataset.eval_split=0.34", f"--output_dir={tmp_path}/plain")
    ).state.policy.state_dict()
    given = ("--dataset.eval_split=0.34", f"--output_dir={tmp_path}/cached")
    train(
        tiny_run(
            *given, "--dataset.cache=disk", f"--dataset.cache_dir={tmp_path}/kept", "--steps=3"
        )
    )
    before = sum(fetched)
    rest = tiny_run(*given, "--dataset.cache_size=1GB", "--resume=true")
    found = train(rest).state.policy.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())
    assert sum(fetched) > before, "frames of the part before were used"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--dataset.cache=frame",), ("frame", "did you mean 'frames'")),
        (("--dataset.cache_dir=/x",), ("/x", "--dataset.cache=disk")),
        (("--dataset.cache=frames", "--dataset.cache_dir=/x"), ("/x", "--dataset.cache=disk")),
        (("--dataset.cache_size=1GB",), ("1GB", "--dataset.cache=frames")),
        (("--dataset.cache=disk", "--dataset.cache_size=much"), ("much", "4GB")),
        (("--dataset.cache=disk", "--dataset.cache_size=0"), ("=0", "4GB")),
    ],
)
def test_impossible_caches_are_refused(tiny_run, given, words):
    with pytest.raises(ConfigError) as error:
        tiny_run(*given)
    for word in ("rule:", "remedy:", *words):
        assert word in str(error.value)

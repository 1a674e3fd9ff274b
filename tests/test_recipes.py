"""The quickstart's recording is there or not, whenever it is ended."""

import signal
import subprocess
import sys
import time

import pytest

from kata.data import open_dataset
from kata.errors import DataError
from kata.recipes import demonstrations

RECORD = (
    "import sys, pathlib, kata.recipes; kata.recipes.demonstrations(pathlib.Path(sys.argv[1]), 30)"
)


@pytest.mark.skipif(sys.platform == "win32", reason="kills")
def test_a_recording_that_was_killed_is_made_again(tmp_path, caplog):
    root = tmp_path / "deep" / "reach"
    process = subprocess.Popen([sys.executable, "-c", RECORD, str(root)])
    until_s = time.monotonic() + 120
    while (
        not list(tmp_path.rglob("data.parquet")) and time.monotonic() < until_s
    ):  # an episode is recorded
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not root.exists()
    assert list(root.parent.iterdir())
    assert demonstrations(root, 2) == root
    assert "removed" in caplog.text
    assert list(root.parent.iterdir()) == [root]
    assert len(open_dataset("kata/reach", root=root).episodes.index) == 2
    assert demonstrations(root, 2) == root
    with pytest.raises(DataError, match="holds 2 episodes") as refused:
        demonstrations(root, 3)
    assert "--episodes=2" in refused.value.remedy


def test_a_folder_that_holds_something_else_is_named_with_a_remedy_that_fits(tmp_path):
    with pytest.raises(DataError, match="no dataset that can be read") as refused:
        demonstrations(tmp_path, 2)
    assert "delete" in refused.value.remedy
    assert "--root" in refused.value.remedy

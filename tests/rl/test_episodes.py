"""Episodes, the ring and the journal: next observations are right, files are whole or refused."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from kata.errors import CheckpointError, ConfigError, DataError
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.episodes.journal import LINES, Journal
from kata.rl.episodes.ring import Ring

CAMERA, STATE = "observation.images.top", "observation.state"
SCHEMA = Schema({CAMERA: (2, 3, 3), STATE: (2,)}, (CAMERA,), 2)


def episode(number, steps, *, terminated=False, human=(), success=None):
    """An episode whose every number tells its number and step."""
    code = 100 * number + np.arange(steps + 1)
    pictures = np.repeat(code % 256, 18).reshape(-1, 2, 3, 3).astype(np.uint8)
    vectors = np.stack([code, -code], 1).astype(np.float32)
    intervention = np.zeros(steps, np.bool_)
    intervention[list(human)] = True
    return PlayedEpisode(
        {CAMERA: pictures, STATE: vectors},
        vectors[:-1] / 1000,
        code[:-1].astype(np.float32),
        np.zeros(steps, np.float32),
        intervention,
        terminated,
        success,
        number,
    )


def pairs(ring):
    """(before, after, done) of every step that can be drawn, by the numbers of `episode`."""
    first, after = ring.rows(np.arange(ring.transitions))
    values = ring.observations[STATE][:, 0]
    assert (ring.reward[first] == values[first]).all()
    assert (ring.observations[CAMERA][after][:, 0, 0, 0] == values[after] % 256).all()
    return [
        (int(a), int(b), bool(d))
        for a, b, d in zip(values[first], values[after], ring.done[first], strict=True)
    ]


def expected(episodes):
    found = []
    for number, steps, terminated in episodes:
        for step in range(steps):
            is_end = terminated and step == steps - 1
            found.append((100 * number + step, 100 * number + step + 1, is_end))
    return found


def test_every_step_is_followed_by_its_own_next_observation():
    """Over ends of time, ends of the task, and the end of the arrays."""
    rng, ring, held = np.random.default_rng(0), Ring(SCHEMA, 23, "capacity"), []
    for number in range(40):
        steps, terminated = int(rng.integers(1, 12)), bool(rng.integers(2))
        ring.add(episode(number, steps, terminated=terminated))
        held.append((number, steps, terminated))
        while sum(each[1] + 1 for each in held) > 23:
            held.pop(0)
        assert pairs(ring) == expected(held)
        assert ring.episodes == len(held)


def test_segments_of_a_human_keep_the_observation_after_their_last_step():
    played = episode(3, 9, terminated=True, human=(1, 2, 5, 7, 8))
    ring = Ring(SCHEMA, 20, "capacity")
    for segment in played.segments():
        ring.add(segment)
    assert pairs(ring) == [
        (301, 302, False), (302, 303, False), (305, 306, False), (307, 308, False),
        (308, 309, True),
    ]  # fmt: skip
    assert episode(0, 4).segments() == []


def test_the_bytes_of_a_buffer_are_known_beforehand():
    ring = Ring(SCHEMA, 1000, "capacity")
    assert ring.nbytes == 1000 * SCHEMA.row_bytes


def test_an_episode_longer_than_the_buffer_is_refused():
    with pytest.raises(ConfigError, match=r"--policy\.capacity=48"):
        Ring(SCHEMA, 8, "policy.capacity").add(episode(0, 11))


def test_an_episode_is_the_same_after_its_file():
    played = episode(2, 5, terminated=True, human=(0,), success=False)
    raw = played.to_bytes()
    read = PlayedEpisode.from_bytes(raw, SCHEMA, "file")
    assert read.to_bytes() == raw
    assert (read.terminated, read.success, read.seed) == (True, False, 2)
    for name, values in played.arrays().items():
        assert np.array_equal(read.arrays()[name], values), name


def test_the_file_is_safetensors(tmp_path):
    from safetensors.numpy import load_file

    (tmp_path / "e.safetensors").write_bytes(episode(1, 3).to_bytes())
    read = load_file(tmp_path / "e.safetensors")
    assert np.array_equal(read[CAMERA], episode(1, 3).observations[CAMERA])


def changed_header(raw, change):
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def wrong_bytes():
    raw = episode(1, 3).to_bytes()
    other = Schema({CAMERA: (2, 3, 3)}, (CAMERA,), 2)
    nan = episode(1, 3)
    nan.observations[STATE][1, 0] = np.nan
    return {
        "empty": (b"", SCHEMA),
        "cut": (raw[:-1], SCHEMA),
        "endless header": (b"\xff" * 8 + raw[8:], SCHEMA),
        "no JSON": (raw[:8] + b"?" + raw[9:], SCHEMA),
        "pickle": (b"\x80\x04K\x01.", SCHEMA),
        "other arrays": (raw, other),
        "not finite": (nan.to_bytes(), SCHEMA),
        "another type": (
            changed_header(raw, lambda h: h["reward"].update(dtype="U8")), SCHEMA,
        ),
        "no steps": (changed_header(raw, lambda h: h["reward"].update(shape=[0])), SCHEMA),
        "beyond the end": (
            changed_header(raw, lambda h: h["reward"].update(data_offsets=[-12, 0])), SCHEMA,
        ),
        "a word for a mark": (episode(1, 3, terminated="no").to_bytes(), SCHEMA),
        "no facts": (changed_header(raw, lambda h: h.pop("__metadata__")), SCHEMA),
    }  # fmt: skip


@pytest.mark.parametrize("name", wrong_bytes())
def test_bytes_that_are_no_episode_of_the_run_are_refused(name):
    raw, schema = wrong_bytes()[name]
    with pytest.raises(DataError, match="an episode of this run"):
        PlayedEpisode.from_bytes(raw, schema, "episode 7")


LIMITED = dataclasses.replace(SCHEMA, low=(-1, 0), high=(1, 2), choices=3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, None),
        ({"action": [1 + 1e-5, 2]}, None),
        ({"action": [np.nan, 0]}, "not finite"),
        ({"action": [1e30, 0]}, "the action 1e+30 at step 1 in dimension 0"),
        ({"action": [0, 0.5]}, "the discrete action 0.5"),
        ({"action": [0, 3]}, "the action 3 at step 1 in dimension 1"),
        ({"reward": np.inf}, "not finite"),
    ],
)
def test_an_episode_that_no_run_may_take_enters_no_journal(wrong, said, tmp_path):
    journal, played = Journal(tmp_path, LIMITED), episode(0, 4)
    played.action[:] = 0
    for name, value in wrong.items():
        played.arrays()[name][1] = value
    if said is None:
        journal.append(played, weights=0, updates=0)
        assert Journal(tmp_path, LIMITED).read(0).steps == 4
        return
    with pytest.raises(DataError, match=re.escape(said)):
        journal.append(played, weights=0, updates=0)
    assert names(tmp_path) == []
    assert journal.entries == []


def test_a_journal_from_before_actions_were_checked_is_read(tmp_path):
    Journal(tmp_path, SCHEMA).append(episode(9, 4), weights=0, updates=0)
    tight = dataclasses.replace(SCHEMA, low=(0, 0), high=(0.1, 0.1))
    assert Journal(tmp_path, tight).read(0).action.max() > 0.8


def test_bounds_and_choices_of_actions_are_in_a_schemas_digest():
    others = [{"choices": 2}, {"high": (1, 3)}, {"low": (-2, 0)}]
    digests = {dataclasses.replace(LIMITED, **other).digest for other in [{}, *others]}
    assert len(digests) == 4
    assert dataclasses.replace(LIMITED, high=(1 + 1e-9, 2)).digest == LIMITED.digest


def test_the_journal_is_read_back(tmp_path):
    journal = Journal(tmp_path, SCHEMA)
    for number in range(3):
        journal.append(episode(number, 4, success=True), weights=number, updates=2 * number)
    again = Journal(tmp_path, SCHEMA)
    assert again.entries == journal.entries
    assert again.steps == 12
    assert [entry.sequence for entry in again.entries] == [0, 1, 2]
    assert again.read(1).to_bytes() == episode(1, 4, success=True).to_bytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_removed_before_another_episode(tmp_path):
    journal = Journal(tmp_path, SCHEMA)
    for number in range(2):
        journal.append(episode(number, 4), weights=0, updates=0)
    lines = (tmp_path / LINES).read_bytes()
    (tmp_path / LINES).write_bytes(lines[:-9])
    (tmp_path / "000001.safetensors.partial").write_bytes(b"half")
    (tmp_path / "notes.safetensors").write_bytes(b"of the user")
    # Whoever reads leaves everything as it is.
    left = names(tmp_path)
    again = Journal(tmp_path, SCHEMA)
    assert again.entries == journal.entries[:1]
    assert names(tmp_path) == left
    assert (tmp_path / LINES).read_bytes() == lines[:-9]
    again.recover()
    assert names(tmp_path) == ["000000.safetensors", LINES, "notes.safetensors"]
    again.append(episode(5, 2), weights=0, updates=0)
    assert Journal(tmp_path, SCHEMA).read(1).steps == 2


@pytest.mark.parametrize(("kept", "gone"), [(0, ()), (1, ()), (1, (1,))])
def test_episodes_without_lines_are_not_removed(kept, gone, tmp_path):
    """A process that is killed leaves one, and the next in order."""
    journal = Journal(tmp_path, SCHEMA)
    for number in range(3):
        journal.append(episode(number, 4), weights=0, updates=0)
    lines = (tmp_path / LINES).read_text().splitlines(keepends=True)
    (tmp_path / LINES).write_text("".join(lines[:kept]))
    for number in gone:
        journal.path(number).unlink()
    left = names(tmp_path)
    with pytest.raises(CheckpointError, match="more episodes") as error:
        Journal(tmp_path, SCHEMA).recover()
    assert "000002.safetensors" in error.value.what
    assert names(tmp_path) == left


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path):
    """The disk is full for files of more than 4,000 bytes."""
    code = (
        "import resource, signal, sys\n"
        "from tests.rl.test_episodes import *\n"
        "journal = Journal(__import__('pathlib').Path(sys.argv[1]), SCHEMA)\n"
        "journal.append(episode(0, 4), weights=0, updates=0)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, -1))\n"
        "try:\n"
        "    journal.append(episode(1, 400), weights=0, updates=0)\n"
        "except OSError as error:\n"
        "    assert error.errno == 27\n"
        "assert sorted(os.listdir(sys.argv[1])) == ['000000.safetensors', LINES]\n"
        "journal.append(episode(2, 3), weights=0, updates=0)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=env)
    assert [entry.steps for entry in Journal(tmp_path, SCHEMA).entries] == [4, 3]


@pytest.mark.parametrize("damage", ["changed", "gone", "line", "gap"])
def test_a_damaged_journal_is_refused(damage, tmp_path):
    journal = Journal(tmp_path, SCHEMA)
    for number in range(3):
        journal.append(episode(number, 4), weights=0, updates=0)
    lines = (tmp_path / LINES).read_text().splitlines(keepends=True)
    if damage == "changed":
        raw = bytearray(journal.path(1).read_bytes())
        raw[-1] ^= 1
        journal.path(1).write_bytes(raw)
        with pytest.raises(DataError, match="sha256"):
            Journal(tmp_path, SCHEMA).read(1)
        return
    if damage == "gone":
        journal.path(1).unlink()
    elif damage == "line":
        (tmp_path / LINES).write_text(lines[0] + "{}\n" + lines[2])
    else:
        (tmp_path / LINES).write_text(lines[0] + lines[2])
    with pytest.raises(CheckpointError, match="copy the run's folder"):
        Journal(tmp_path, SCHEMA)

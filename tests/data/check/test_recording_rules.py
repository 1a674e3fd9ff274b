"""Rules of recording on made signals and pictures: faults are found, and nothing in clean ones."""

import numpy as np
import pytest

from kata.data.check.faults import FrameRange, RecordingFaults
from kata.data.check.recording.clipping import find_clipping
from kata.data.check.recording.duplicate_episodes import find_duplicates
from kata.data.check.recording.idle import find_idle
from kata.data.check.recording.lag import find_lags
from kata.data.check.recording.same_video import find_same_video
from kata.data.check.recording.signals import EpisodeSpan, measure_signal
from kata.data.check.recording.still_video import find_still_video
from kata.data.check.recording.swapped_cameras import find_swapped
from kata.data.check.recording.thumbnails import HEIGHT, WIDTH, Sampled, choose_episodes
from kata.spec import ACTION, STATE

FPS, EPISODES, LENGTH, LAG = 20, 12, 120, 2
NAMES = ("waist", "shoulder", "elbow", "gripper")


def motion(rng, frames):
    """A smooth random motion of three joints and a gripper that opens and closes."""
    coarse = rng.normal(size=(frames // 10 + 4, 3))
    at = np.arange(frames) / 10
    joints = np.stack([np.interp(at, np.arange(len(coarse)), each) for each in coarse.T], axis=1)
    kernel = np.hanning(9) / np.hanning(9).sum()
    joints = np.stack([np.convolve(each, kernel, "same") for each in joints.T], axis=1)
    grip = (np.sin(np.arange(frames) / 15) > 0).astype(float)
    return np.concatenate([joints, grip[:, None]], axis=1).astype(np.float32)


class Recorded:
    """Clean episodes, whose arrays a test changes before it looks."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        paths = [motion(rng, LENGTH + LAG) for _ in range(EPISODES)]
        self.action = [path[LAG:].copy() for path in paths]
        self.state = [path[:-LAG].copy() for path in paths]

    def signals(self):
        lengths = [len(each) for each in self.state]
        starts = np.cumsum(lengths) - lengths
        self.episodes = [
            EpisodeSpan(n, 100 + n, int(start), int(start + length))
            for n, (start, length) in enumerate(zip(starts, lengths, strict=True))
        ]
        return [
            measure_signal(key, NAMES, np.concatenate(values), self.episodes, FPS)
            for key, values in ((STATE, self.state), (ACTION, self.action))
        ]

    def faults(self):
        state, action = self.signals()
        found = RecordingFaults(lengths={e.index: e.length for e in self.episodes}, fps=FPS)
        found.take(find_lags(state, action, self.episodes, FPS))
        found.take(find_clipping([state, action], self.episodes, FPS))
        found.take(find_idle([state, action], self.episodes, FPS, []))
        found.take(find_duplicates([state, action], self.episodes, FPS))
        return found


def late(values, frames):
    return np.concatenate([np.repeat(values[:1], frames, axis=0), values])[: len(values)]


def kinds(found):
    return [fault.rule.kind for fault in found.faults]


def test_nothing_is_found_in_clean_numbers():
    found = Recorded().faults()
    assert not found.faults
    assert found.keep_ranges() == {}
    assert (
        found.looked["lag"] == f"3 joints in {EPISODES} episodes" or "joints" in found.looked["lag"]
    )


@pytest.mark.parametrize(("seconds", "word"), [(0.6, "follows"), (-0.3, "precedes")])
def test_a_state_that_is_late_or_early_throughout_is_found(seconds, word):
    made = Recorded()
    shift = round(abs(seconds) * FPS)
    which = made.state if seconds > 0 else made.action
    which[:] = [late(each, shift) for each in which]
    found = made.faults()
    assert kinds(found) == ["lag"]
    (fault,) = found.faults
    assert word in fault.what
    measured = float(fault.what.split(" by ")[1].split(" s")[0])
    assert measured == pytest.approx(abs(seconds + LAG / FPS), abs=1 / FPS)
    assert not fault.cuts


def test_one_episode_with_another_lag_is_found_and_left_out():
    made = Recorded()
    made.state[3] = late(made.state[3], 4)
    found = made.faults()
    assert kinds(found) == ["lag of episodes"]
    assert "0.30 s, in the other episodes by 0.10 s" in found.faults[0].what
    assert found.keep_ranges() == {"103": []}
    assert found.spoiled() == [103]


def test_actions_that_are_velocities_are_compared_as_such():
    made = Recorded()
    made.action = [np.gradient(each, axis=0).astype(np.float32) for each in made.action]
    assert "lag" not in kinds(made.faults())
    made.state = [late(each, 14) for each in made.state]
    assert "lag" in kinds(made.faults())


def test_a_clipped_joint_is_found_and_a_gripper_is_not():
    made = Recorded()
    bound = np.quantile(np.concatenate(made.state)[:, 1], 0.93)
    for each in made.state:
        each[:, 1] = np.minimum(each[:, 1], bound)
    found = made.faults()
    assert kinds(found) == ["clipped joint"]
    assert found.faults[0].what.startswith(f"'shoulder' of {STATE} stands at its largest value")


@pytest.mark.parametrize(("head", "tail"), [(40, 0), (0, 60), (30, 30)])
def test_idle_ends_are_found_and_cut_but_for_a_margin(head, tail):
    made = Recorded()
    rng = np.random.default_rng(1)
    for which, noise in ((made.state, 1e-3), (made.action, 0.0)):
        path = which[5]
        still = np.concatenate(
            [np.repeat(path[:1], head, axis=0), path, np.repeat(path[-1:], tail, axis=0)]
        )
        which[5] = still + rng.normal(0, noise, still.shape).astype(np.float32)
    found = made.faults()
    assert kinds(found) == ["idle head or tail"] * ((head > 0) + (tail > 0))
    ((first, end),) = found.keep_ranges()["105"]
    margin = FPS // 4
    assert first == pytest.approx(max(0, head - margin), abs=3)
    assert end == pytest.approx(head + LENGTH + min(tail, margin), abs=3)


def test_short_pauses_at_the_ends_are_no_fault():
    made = Recorded()
    for which in (made.state, made.action):
        which[5] = np.concatenate([np.repeat(which[5][:1], FPS, axis=0), which[5]])
    assert not made.faults().faults


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_an_episode_that_repeats_another_is_found(share):
    made = Recorded()
    count = round(share * LENGTH)
    for which in (made.state, made.action):
        which[8] = np.concatenate([which[2][:count], which[8][: LENGTH - count]])
    found = made.faults()
    assert kinds(found) == ["duplicated episode"]
    assert found.faults[0].episodes == (102, 108)
    assert found.keep_ranges() == {"108": []}


def test_resting_at_the_same_pose_is_no_duplicate():
    made = Recorded()
    for which in (made.state, made.action):
        which[:] = [np.concatenate([np.zeros((25, 4), np.float32), each]) for each in which]
    assert "duplicated episode" not in kinds(made.faults())


# ---- pictures

STEP = FPS // 2


def scene(view, rng):
    """A still background of one camera."""
    base = np.random.default_rng(view).integers(40, 200, (HEIGHT // 6, WIDTH // 6 + 1, 3))
    still = np.repeat(np.repeat(base, 6, axis=0), 6, axis=1)[:HEIGHT, :WIDTH]
    return (still + rng.integers(-8, 9, 3)).clip(0, 255).astype(np.uint8)


def filmed(made, view, seed=0):
    """A camera that films the four joints as two squares that move."""
    rng = np.random.default_rng([seed, view])
    thumbs, frames = [], []
    for path in made.state:
        rows = np.arange(0, len(path), STEP)
        pictures = np.repeat(scene(view, rng)[None], len(rows), axis=0)
        for picture, pose in zip(pictures, path[rows], strict=True):
            for color, (across, up) in ((250, pose[:2]), (5, pose[2:])):
                x = int(np.clip((across + 2) / 4, 0, 1) * (WIDTH - 10))
                y = int(np.clip((up + 2) / 4, 0, 1) * (HEIGHT - 10))
                picture[y : y + 10, x : x + 10] = color
        noise = rng.integers(-2, 3, pictures.shape)
        thumbs.append((pictures + noise).clip(0, 255).astype(np.uint8))
        frames.append(rows)
    return Sampled(f"camera {view}", made.episodes, frames, thumbs)


def watched(cameras, signals):
    found = RecordingFaults(fps=FPS)
    found.take(find_still_video(cameras, signals[:1], FPS))
    found.take(find_same_video(cameras, signals[:1], FPS))
    found.take(find_swapped(cameras))
    return found


@pytest.fixture
def pictures():
    made = Recorded()
    signals = made.signals()
    return [filmed(made, 1), filmed(made, 2)], signals


def test_nothing_is_found_in_clean_pictures(pictures):
    assert not watched(*pictures).faults


def test_a_camera_that_freezes_while_the_robot_moves_is_found(pictures):
    cameras, signals = pictures
    cameras[0].thumbs[4][3:7] = cameras[0].thumbs[4][3]
    (fault,) = watched(cameras, signals).faults
    assert fault.rule.kind == "frozen video"
    assert "'camera 1' shows one picture from frame 30 to 60" in fault.what
    # Everything between the live samples on either side goes.
    assert fault.cuts == (FrameRange(104, 21, 70),)


def test_a_picture_that_stands_while_the_robot_waits_is_no_fault():
    made = Recorded()
    for which in (made.state, made.action):
        which[4][30:80] = which[4][30]
    signals = made.signals()
    camera = filmed(made, 1)
    camera.thumbs[4][3:8] = camera.thumbs[4][3]
    assert not watched([camera], signals).faults


def test_a_camera_that_often_does_not_see_the_robot_is_not_judged(pictures):
    cameras, signals = pictures
    for number in range(4):
        cameras[0].thumbs[number][:4] = cameras[0].thumbs[number][0]
    found = watched(cameras, signals)
    assert not found.faults
    assert found.looked["frozen video"].endswith("'camera 1' does not always see the robot")
    # One that never changes in an episode hangs, however often.
    for number in range(4):
        cameras[0].thumbs[number][:] = cameras[0].thumbs[number][0]
    assert [f.rule.kind for f in watched(cameras, signals).faults] == ["frozen video"] * 4


def test_black_pictures_are_found(pictures):
    cameras, signals = pictures
    cameras[1].thumbs[2][5:7] = np.random.default_rng(0).integers(0, 9, (2, HEIGHT, WIDTH, 3))
    cameras[1].thumbs[9][:] = 0
    faults = watched(cameras, signals).faults
    assert [fault.rule.kind for fault in faults] == ["black video"] * 2
    assert faults[0].cuts == (FrameRange(102, 41, 70),)
    assert faults[1].cuts == (FrameRange(109, 0, LENGTH),)


def test_the_video_of_another_episode_is_found(pictures):
    cameras, signals = pictures
    cameras[0].thumbs[7][:] = cameras[0].thumbs[1]
    (fault,) = watched(cameras, signals).faults
    assert fault.rule.kind == "duplicated video"
    assert fault.episodes == (101, 107)
    # Which of the two is the copy cannot be known.
    assert [cut.episode for cut in fault.cuts] == [101, 107]


def test_two_cameras_with_the_same_pictures_are_found(pictures):
    cameras, signals = pictures
    cameras[1].thumbs[6][:] = cameras[0].thumbs[6]
    faults = watched(cameras, signals).faults
    assert [fault.rule.kind for fault in faults] == ["duplicated video"]
    assert faults[0].episodes == (106,)


@pytest.mark.parametrize("episodes", [(0,), (3, 7), (1, 2, 5, 8)])
def test_swapped_cameras_are_found(pictures, episodes):
    cameras, signals = pictures
    one, other = (camera.thumbs for camera in cameras)
    for number in episodes:
        one[number], other[number] = other[number].copy(), one[number].copy()
    faults = watched(cameras, signals).faults
    assert [fault.rule.kind for fault in faults] == ["swapped cameras"] * len(episodes)
    assert [fault.cuts[0] for fault in faults] == [
        FrameRange(100 + number, 0, LENGTH) for number in episodes
    ]


def test_cameras_that_change_places_within_an_episode_are_found_from_there(pictures):
    cameras, signals = pictures
    one, other = (camera.thumbs[5] for camera in cameras)
    one[6:], other[6:] = other[6:].copy(), one[6:].copy()
    (fault,) = watched(cameras, signals).faults
    assert fault.cuts == (FrameRange(105, 51, LENGTH),)


def test_what_cannot_be_judged_is_said():
    made = Recorded()
    made.state = [each[:40] for each in made.state[:3]]
    made.action = [each[:40] for each in made.action[:3]]
    looked = made.faults().looked
    assert looked["lag"] == "not looked at: fewer than 3 episodes last 3 s"
    assert looked["clipped joint"] == "not looked at: fewer than 1,000 frames"
    assert watched([], []).looked["swapped cameras"] == "not looked at: fewer than two cameras"


def test_a_budget_of_frames_takes_whole_episodes_spread_evenly():
    episodes = [EpisodeSpan(n, n, 100 * n, 100 * n + 100) for n in range(1000)]
    chosen = choose_episodes(episodes, 10, 400)
    assert len(chosen) == 20
    assert (chosen[0].index, chosen[-1].index) == (0, 999)
    assert len(choose_episodes(episodes, 10, 10**6)) == 1000
    assert len(choose_episodes(episodes, 10, 1)) == 1

"""The courier's signs of life, and options of an actor that are misspelt."""

import httpx
import pytest

from kata.errors import ConfigError
from kata.rl.network.courier import Answer, EpisodeCourier, Patience
from kata.rl.network.options import resolve_act
from kata.rl.network.spool import ActorIdentity, Spool
from kata.rl.network.wire import STOP
from tests.rl.network.pendulum import wait_for


class Learner:
    """Answers that it has enough, from the first question on."""

    def __init__(self):
        self.asked = []

    def ask(self, method, path, most, body=b"", **headers):
        self.asked.append(path.partition("?")[0])
        return Answer(204, httpx.Headers({STOP: "1"}), b"")


def test_an_actor_that_needs_no_weights_any_more_shows_that_it_lives(tmp_path):
    learner = Learner()
    who = ActorIdentity("arm", "1" * 32, "run")
    with EpisodeCourier(learner, Spool(tmp_path), who, 10, Patience(5.0)) as courier:
        wait_for(lambda: "/beat" in learner.asked)
        assert courier.is_told_to_stop
    assert learner.asked.count("/weights") == 1
    assert learner.asked[-1] == "/bye"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--env.type=kata", "--rl.lerner=http://a:1"], "did you mean 'rl.learner'"),
        (["--env.tpe=kata", "--rl.learner=http://a:1"], "did you mean 'env.type'"),
        (["--env.type=kata", "--rl.learner=http://a:1", "--output_dr=x"], "output_dir"),
        (["--env.type=kata"], "--rl.learner=http://127"),
    ],
)
def test_a_misspelt_option_gets_one_message_with_the_nearest_name(args, said):
    with pytest.raises(ConfigError) as error:
        resolve_act(args)
    assert said in error.value.remedy

"""The parts of a run that learn and act, as its options and its environment have them."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import ExitStack
from dataclasses import dataclass

from kata.eval.envs.registry import EnvSpec
from kata.eval.rollout_policy import Acting
from kata.rl.batches import Buffers, Sampling, TransitionBatches
from kata.rl.classifier.saved import open_judge
from kata.rl.demos import Demos, open_demos
from kata.rl.environment import RlEnv
from kata.rl.episodes.episode import Schema
from kata.rl.episodes.ring import Ring
from kata.rl.learner import Learner
from kata.rl.options import RlRun
from kata.rl.sac.algorithm import Sac
from kata.rl.setup import (
    episode_schema,
    new_policy,
    plain_stats,
    plan_buffers,
    policy_config,
    refuse_small_share,
    run_stats,
    warn_of_traps,
)
from kata.units import bytes_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a run, before its first step.

    Attributes:
        schema: of its episodes.
        world: its environment.
        acting: its policy, with new weights.
        learner: has taken no episode yet.
        demos: its demonstrations, or None.
        shown: the buffer for them, empty, or None.
    """

    schema: Schema
    world: RlEnv
    acting: Acting
    learner: Learner
    demos: Demos | None
    shown: Ring | None

    def take_demos(self) -> None:
        """Read the demonstrations into their buffer."""
        if self.demos is None or self.shown is None:
            return
        for episode in self.demos.episodes():
            self.shown.add(episode)
        shown = self.shown
        _log.info("%d demonstrations, %d steps", shown.episodes, shown.transitions)


def assemble_parts(run: RlRun, spec: EnvSpec, stack: ExitStack) -> Parts:
    """Make the parts of a run, and refuse what cannot work.

    Args:
        run: its options.
        spec: of its environment.
        stack: closes the environment.

    Raises:
        KataError: what the user can correct.
    """
    # 1. What is seen, done and known beforehand.
    config, rules, facts = policy_config(run, spec)
    schema = episode_schema(config, rules)
    demos = None
    if run.has_demos:
        demos = open_demos(run.dataset, schema, rules, config.num_discrete_actions, facts.fps)
        refuse_small_share(run, demos)
    plan = plan_buffers(run, schema, demos, facts.max_steps)
    _log.info("buffers take %s: %s", bytes_text(plan.nbytes), "; ".join(plan.lines()))
    warn_of_traps(run, config, spec)
    judge = open_judge(run.rl.classifier, run.rl.threshold, schema, config.device)
    world = RlEnv(rules, judge)
    stack.callback(world.close)
    stats = run_stats(config, rules, world, demos)
    config = dataclasses.replace(config, dataset_stats=plain_stats(stats))
    # 2. The parts that learn and act.
    acting = new_policy(config, stats, run.seed)
    sac = Sac(acting.policy, run.algorithm)  # pyright: ignore[reportArgumentType]
    online, shown, takeovers = plan.rings()
    buffers = Buffers(online, [ring for ring in (shown, takeovers) if ring is not None])
    sampling = Sampling(
        size=run.batch_size,
        own=run.online_size,
        seed=run.seed,
        shift=run.algorithm.random_shift,
        normalize_actions=run.algorithm.normalize_actions,
    )
    batches = TransitionBatches(buffers, acting, sampling)
    before = config.online_step_before_learning
    learner = Learner(sac, batches, buffers, takeovers, before, run.rl.update_every)
    return Parts(schema, world, acting, learner, demos, shown)

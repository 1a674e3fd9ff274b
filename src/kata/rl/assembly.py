"""The parts of a run that learn and act, as its options and its environment have them."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn

from kata.data.storage.buffers import free_memory
from kata.eval.envs.registry import EnvSpec, Facts, register_env, resolve_env
from kata.eval.rollout_policy import Acting
from kata.rl.batches import Buffers, Sampling, TransitionBatches
from kata.rl.classifier.saved import open_judge
from kata.rl.demos import Demos, open_demos
from kata.rl.environment import RlEnv
from kata.rl.episodes.episode import Schema
from kata.rl.episodes.ring import Ring
from kata.rl.learner import Learner
from kata.rl.options import RlRun, resolve_rl
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
from kata.tables import table_lines
from kata.units import bytes_text, count_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a run, before its first step.

    Attributes:
        schema: of its episodes.
        facts: of its environment.
        world: its environment.
        acting: its policy, with new weights.
        learner: has taken no episode yet.
        demos: its demonstrations, or None.
        shown: the buffer for them, empty, or None.
    """

    schema: Schema
    facts: Facts
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
        demos = open_demos(run.dataset, schema, rules, config.num_discrete_actions, facts)
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
        dropped=run.algorithm.dropout,
        clone_successes=run.algorithm.bc_successes,
    )
    batches = TransitionBatches(buffers, acting, sampling)
    before = config.online_step_before_learning
    learner = Learner(sac, batches, buffers, takeovers, before, run.rl.update_every)
    return Parts(schema, facts, world, acting, learner, demos, shown)


def memory_text(args: Sequence[str], *, as_json: bool) -> str:
    """Return what the buffers and networks of `kata rl train` with these arguments take.

    The buffers are those of the run itself, from the same function, so the sizes are what the run
    says before its start.

    Raises:
        KataError: the run would be refused, among others because its buffers do not fit.
    """
    run = resolve_rl(args)
    spec = resolve_env(run.env)
    register_env(spec)
    config, rules, facts = policy_config(run, spec)
    schema = episode_schema(config, rules)
    demos = None
    if run.has_demos:
        demos = open_demos(run.dataset, schema, rules, config.num_discrete_actions, facts)
    plan = plan_buffers(run, schema, demos, facts.max_steps)
    with ExitStack() as stack:
        world = RlEnv(rules)
        stack.callback(world.close)
        acting = new_policy(config, run_stats(config, rules, world, demos), run.seed)
    sac = Sac(acting.policy, run.algorithm)  # pyright: ignore[reportArgumentType]
    networks = _networks_bytes(sac)
    rows = {"own episodes": plan.online, "demonstrations": plan.demos, "takeovers": plan.takeovers}
    if as_json:
        found = {name: count * schema.row_bytes for name, count in rows.items() if count}
        every = {"buffers": found, "buffers_bytes": plan.nbytes, "networks_bytes": networks}
        return json.dumps({**every, "observation_bytes": schema.row_bytes}, indent=1) + "\n"
    table = [["memory of", "observations", ""]]
    table += [
        [name, count_text(count), bytes_text(count * schema.row_bytes)]
        for name, count in rows.items()
        if count
    ]
    table.append(["networks, gradients, Adam", "", bytes_text(networks)])
    table.append(["together", "", bytes_text(plan.nbytes + networks)])
    lines = table_lines(table, first_number=1)
    free = bytes_text(free_memory())
    lines.append(f"an observation: {schema.row_bytes:,} bytes; free memory here: {free}")
    return "\n".join(lines) + "\n"


def _networks_bytes(sac: Sac) -> int:
    """Return the bytes of weights, and of gradients and Adam's averages of what learns."""
    modules: list[nn.Module] = [sac.policy, sac.critics, sac.targets]
    found = sum(_bytes_of(module.parameters()) for module in modules)
    for optimizer in sac.optimizers.values():
        found += 3 * sum(_bytes_of(group["params"]) for group in optimizer.param_groups)
    return found


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

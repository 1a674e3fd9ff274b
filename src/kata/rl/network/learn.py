"""`kata rl learn`: a learner whose actors are elsewhere."""

from __future__ import annotations

import errno
import logging
import secrets
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from kata.config import encode
from kata.files import FULL as FULL_DISK
from kata.policies.gaussian_actor.model import Policy
from kata.rl.classifier.saved import classifier_digest
from kata.rl.episodes.ring import Ring
from kata.rl.network.desk import Desk, Published, Submission
from kata.rl.network.env_record import env_record
from kata.rl.network.members import RunActors
from kata.rl.network.options import ServingConfig, read_token
from kata.rl.network.server import Serving
from kata.rl.network.wire import (
    CONFLICT,
    FULL,
    HEADER_BYTES,
    NetworkError,
    RunFacts,
)
from kata.rl.options import RlConfig
from kata.rl.trainer import RunSession
from kata.units import count_text, duration_s

SAID_S = 60.0
"""Time between messages of waiting."""

IDLE_S = 0.25

_log = logging.getLogger(__name__)


class NetworkLearner:
    """A learner that takes episodes as they come, and updates as often as they allow.

    An episode is taken between two updates. The journal notes after which, so that what was learned
    follows from the journal: see `kata.rl.replay`.

    Args:
        session: an opened run.
        options: of the network.
    """

    def __init__(self, session: RunSession, options: ServingConfig) -> None:
        self._session = session
        self._options = options
        self._token = read_token(options.token_file)
        journal = session.journal
        self._members = RunActors(session.folder, journal.entries, options.max_actors)
        self._bytes = sum(journal.path(e.episode).stat().st_size for e in journal.entries)
        self._desk = Desk(self._facts(), journal.schema, self._max_steps(), self._members)
        self._boot = secrets.token_hex(4)
        self._published_s = -1e9
        self._said_s = -1e9
        self._present: list[str] = []

    def go(self) -> None:
        """Learn until all steps are done and learned from, or somebody asks to stop; then save.

        The address is taken first: whether it is free is known before cloning.
        """
        session = self._session
        with Serving(self._desk, self._options, self._token) as serving:
            self._catch_up()
            session.clone_first()
            self._desk.updates = session.learner.sac.updates
            self._publish()
            serving.start()
            _log.info("actors: kata rl act --env.type=... --rl.learner=%s", serving.url)
            try:
                self._work()
            finally:
                self._desk.close()  # whatever ended it, actors keep what they have
        session.save()

    def _work(self) -> None:
        session = self._session
        while not session.stop.should_stop():
            self._take_all()
            self._desk.is_over = self._is_over()
            if self._is_allowed():
                session.learn()
                self._desk.updates = session.learner.sac.updates
                self._publish_when_due()
            elif self._desk.is_over:
                break
            else:
                self._wait()
            self._note_who_is_there()
            session.between_episodes()
        # The run is over: actors send what they have. Where this process began at the end, they
        # get time to come back.
        while self._desk.present() or self._desk.expected():
            if session.stop.should_stop():
                break
            self._wait()

    # --- learning -----------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Take the episodes that came after the checkpoint, each after the update at which it was
        taken before.
        """
        session, learner = self._session, self._session.learner
        for entry in session.journal.entries[learner.episodes :]:
            while learner.sac.updates < entry.updates and not session.stop.should_stop():
                session.learn()
            if session.stop.reason is not None:
                return
            session.take(session.journal.read(entry.episode))
        self._desk.updates = learner.sac.updates

    def _is_allowed(self) -> bool:
        """Return True if the steps so far allow one more update."""
        learner, most = self._session.learner, self._options.utd_max
        if most is None:
            return learner.is_behind
        allowed = int(most * max(0, learner.steps - learner.before))
        return learner.sac.updates < learner.cloning + allowed

    def _is_over(self) -> bool:
        return self._session.learner.steps >= self._session.run.policy.online_steps

    def _wait(self) -> None:
        now = time.monotonic()
        if now - self._said_s >= SAID_S:
            self._said_s = now
            learner = self._session.learner
            _log.info(
                "waits for episodes: %s updates for %s steps; actors: %s",
                count_text(learner.sac.updates),
                count_text(learner.steps),
                ", ".join(self._desk.present()) or "none",
            )
        if self._published_updates() != self._session.learner.sac.updates:
            self._publish_when_due()
        for found in self._desk.waiting(IDLE_S):
            self._take(found)

    # --- episodes -----------------------------------------------------------------------------

    def _take_all(self) -> None:
        for found in self._desk.waiting():
            self._take(found)

    def _take(self, found: Submission) -> None:
        """Put an episode into the journal and the buffers, or refuse it."""
        try:
            self._admit(found)
        except NetworkError as error:
            found.answer.set_exception(error)
        else:
            found.answer.set_result(None)

    def _admit(self, found: Submission) -> None:
        session, journal = self._session, self._session.journal
        mine = self._members.episodes(found.actor)
        source = f"actor {found.actor}, episode {found.sequence}"
        if found.sequence < len(mine):
            if journal.read(mine[found.sequence].episode).to_bytes() == found.episode.to_bytes():
                return  # its answer was lost: it counts once
            raise NetworkError(
                CONFLICT,
                f"{source}: another episode {found.sequence} is in the journal",
                rule="each episode of an actor has a number of its own",
                remedy="a new --output_dir and another --rl.name for the actor",
            )
        if found.sequence > len(mine):
            raise NetworkError(
                CONFLICT,
                f"{source}: episode {len(mine)} is not in the journal",
                rule=f"numbers without a gap: {len(mine)} is next",
                remedy="the learner's folder is older than the actor's: bring back the newer one, "
                "or begin with a new --output_dir and another --rl.name",
            )
        self._refuse_without_room(found, source)
        updates = session.learner.sac.updates
        try:
            entry = journal.append(
                found.episode,
                weights=found.weights,
                updates=updates,
                actor=found.actor,
                sequence=found.sequence,
            )
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            _log.warning("%s: not taken, the disk is full (%s)", source, error)
            raise self._no_room(source, errno.errorcode.get(error.errno or 0, "")) from error
        self._bytes += journal.path(entry.episode).stat().st_size
        self._members.count(entry)
        session.take(found.episode)

    def _refuse_without_room(self, found: Submission, source: str) -> None:
        limit = self._options.max_journal_gb
        size = found.episode.steps * self._session.journal.schema.row_bytes
        if limit is not None and self._bytes + size > limit * 1e9:
            raise self._no_room(source, f"rl.max_journal_gb={limit:g}")

    def _no_room(self, source: str, why: str) -> NetworkError:
        return NetworkError(
            FULL,
            f"{source}: no room for the journal ({why})",
            rule=f"{self._session.journal.folder} has room for every episode",
            remedy="make room; the actor keeps the episode and sends it again",
        )

    # --- actors -------------------------------------------------------------------------------

    def _publish_when_due(self) -> None:
        if time.monotonic() - self._published_s >= duration_s(self._options.publish_every):
            self._publish()

    def _published_updates(self) -> int:
        found = self._desk.published
        return -1 if found is None else found.updates

    def _publish(self) -> None:
        updates = self._session.learner.sac.updates
        body = weights_body(self._session.learner.sac.policy)
        self._desk.publish(Published(f"{updates}-{self._boot}", updates, body))
        self._published_s = time.monotonic()

    def _note_who_is_there(self) -> None:
        present = self._desk.present()
        for name in sorted({*present} - {*self._present}):
            _log.info("actor %s is there", name)
        for name in sorted({*self._present} - {*present}):
            _log.info("actor %s is gone", name)
        self._present = present

    # --- facts --------------------------------------------------------------------------------

    def _max_steps(self) -> int:
        """Return the steps of the longest episode that every buffer can hold and the environment
        allows.
        """
        learner = self._session.learner
        rings: list[Ring | None] = [learner.buffers.online, learner.takeovers]
        held = min(ring.capacity for ring in rings if ring is not None) - 1
        return min(held, self._session.facts.max_steps)

    def _facts(self) -> RunFacts:
        session, run = self._session, self._session.run
        schema, limit = session.journal.schema, self._options.max_episode_mb
        most = (self._max_steps() + 1) * schema.row_bytes + HEADER_BYTES
        state = session.learner.sac.actor_weights()
        policy = encode(session.acting.config)
        policy.pop("type", None)
        return RunFacts(
            run_id=self._members.run_id,
            schema=schema.digest,
            env=env_record(session.spec, session.facts, schema),
            seed=run.seed,
            reward=run.rl.reward,
            policy=policy,
            takeover=encode(run.takeover),
            judge=_judge(run.rl),
            episode_bytes=most if limit is None else int(limit * 1e6),
            weights_bytes=sum(each.nbytes for each in state.values()),
        )


def _judge(options: RlConfig) -> dict[str, Any]:
    if options.classifier is None:
        return {}
    digest = classifier_digest(Path(options.classifier).expanduser())
    return {"digest": digest, "threshold": options.threshold}


def weights_body(policy: Policy) -> bytes:
    """Return a policy's tensors as safetensors."""
    state = policy.state_dict()
    return save({name: torch.clone(each.detach()).cpu() for name, each in state.items()})

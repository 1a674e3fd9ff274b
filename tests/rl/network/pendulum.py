"""A learner and actors of a tiny run on loopback, in threads."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from kata.rl.network.act import act_for_learner
from kata.rl.network.learn import NetworkLearner
from kata.rl.network.options import resolve_act, resolve_learn
from kata.rl.trainer import train_rl

LAYERS = "{hidden_dims: [8, 8]}"
ENV = [
    "--env.type=gym", "--env.id=Pendulum-v1", "--env.max_steps=12", "--env.success_key=terminated",
]  # fmt: skip
RUN = [
    *ENV, "--rl.reward=env", "--policy.device=cpu", "--policy.latent_dim=8",
    f"--policy.actor_network_kwargs={LAYERS}", f"--algorithm.critic_network_kwargs={LAYERS}",
    "--batch_size=8", "--log_freq=5", "--policy.online_buffer_capacity=50", "--save_freq=24",
    "--policy.online_step_before_learning=10", "--rl.publish_every=0.05s",
    "--report=false",
]  # fmt: skip


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def learn(folder, port, *args, sessions=None):
    torch.set_num_threads(1)
    options, run = resolve_learn(
        [*RUN, f"--output_dir={folder}", f"--rl.port={port}", "--resume=true", *args]
    )

    def work(session):
        if sessions is not None:
            sessions.append(session)
        NetworkLearner(session, options).go()

    return train_rl(run, work)


def act(folder, port, name, *args):
    return act_for_learner(
        resolve_act(
            [
                *ENV, "--device=cpu", f"--output_dir={folder}", f"--rl.name={name}",
                f"--rl.learner=http://127.0.0.1:{port}", *args,
            ]
        )
    )  # fmt: skip


@contextmanager
def running(folder, *args):
    """A learner that runs until the context ends: its port, and its session."""
    port, sessions = free_port(), []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(learn, folder, port, *args, sessions=sessions)
        try:
            wait_for(lambda: (sessions and answers(port)) or done.done())
            yield port, sessions
        finally:
            for session in sessions:
                session.stop.reason = "the test is over"
        done.result()


def end(session):
    """Let a run end as if it had the steps that it was asked for."""
    object.__setattr__(session.run.policy, "online_steps", 10)


def answers(port):
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def wait_for(is_true, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.02)

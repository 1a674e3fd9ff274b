"""`kata launch`: from its options to the target that runs them."""

from __future__ import annotations

from collections.abc import Sequence

from kata.launch.options import Jobs, LaunchTarget, Local, Slurm


def launch(options: LaunchTarget, run_args: Sequence[str]) -> int:
    """Launch a run and return the exit status.

    Args:
        options: an instance of the target's class.
        run_args: `train` and its options.
    """
    if isinstance(options, Slurm):
        from kata.launch.slurm import launch_slurm

        return launch_slurm(options, run_args)
    if isinstance(options, Jobs):
        from kata.launch.hf_jobs import launch_job

        return launch_job(options, options.target.removeprefix("hf:"), run_args)
    from kata.launch.local import launch_local

    assert isinstance(options, Local)
    return launch_local(options, run_args)

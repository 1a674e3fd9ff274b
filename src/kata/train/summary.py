"""The last words of a run: what came out, how good it is against never looking, and where it
lies.
"""

from __future__ import annotations

from typing import Any

from kata.pointers import LAST, pointed
from kata.run import Run
from kata.train.checkpoint.folder import home_of
from kata.train.checkpoint.manifest import PRETRAINED
from kata.train.checkpoint.upload import upload
from kata.train.trainer import Trained
from kata.units import rate_text, seconds_text


def run_summary(run: Run, trained: Trained) -> str:
    """Return lines for the terminal."""
    last = trained.last
    lines: list[str] = []
    if last:
        lines.append(
            f"trained {last['step']} steps: loss {last['loss']:.4g}, "
            f"{rate_text(last['samples_per_s'])} samples/s"
        )
    if trained.diagnosis is not None:
        lines.append(trained.diagnosis.text)
    if trained.stopped is not None:
        lines.append(_stopped(run, trained))
    if trained.best is not None:
        error, mean = trained.best["action_error"], trained.best["mean_action_error"]
        lines.append(
            f"validation: action error {error:.4g} at step {trained.best['step']}, "
            f"{error / mean:.0%} of the mean "
            f"action's {mean:.4g}"
        )
        if "checkpoint" in trained.best:
            lines.append(f"best checkpoint: {trained.best['checkpoint']}")
    lines += trained.remarks
    lines += [_success(step, result) for step, result in sorted(trained.evaluations.items())]
    last_link = home_of(trained.folder) / LAST
    newest = pointed(last_link)
    if newest is not None:
        lines += [*_saves(trained.saves), f"last checkpoint: {last_link} -> {newest.name}"]
    return "".join(line + "\n" for line in lines)


def report_line(trained: Trained) -> str:
    """Return where the report lies, or why there is none."""
    fault = trained.report_fault
    return f"report: {trained.report}\n" if fault is None else f"no report: {fault}\n"


def upload_line(run: Run, trained: Trained) -> str:
    """Upload the final policy where that was asked for, and return how it went."""
    newest = pointed(home_of(trained.folder) / LAST)
    wanted = run.policy.push_to_hub and run.policy.repo_id and trained.stopped is None
    return upload(run, newest / PRETRAINED) + "\n" if wanted and newest is not None else ""


def _stopped(run: Run, trained: Trained) -> str:
    ended = f"stopped after {trained.state.step} of {run.steps} steps ({trained.stopped})"
    if not run.save_checkpoint:
        return (
            f"{ended}; what these steps learned is lost, for save_checkpoint=false writes no "
            "checkpoint"
        )
    return f"{ended}; to go on: the same command with --resume=true --output_dir={trained.folder}"


def _saves(saves: list[dict[str, Any]]) -> list[str]:
    done, lost = (
        [line for line in saves if "error" not in line],
        [line for line in saves if "error" in line],
    )
    lines = [f"{len(lost)} saves were lost to a full disk; the last one is whole"] if lost else []
    if done:
        stalls, writes = [line["save_stall_s"] for line in done], [line["save_s"] for line in done]
        lines.append(
            f"saved {_times(len(done))}: training stood still for {seconds_text(sum(stalls))} in "
            "all, "
            f"{seconds_text(max(stalls))} at most; writing beside it took up to "
            f"{seconds_text(max(writes))}"
        )
    return lines


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _success(step: int, result: dict[str, Any]) -> str:
    weights = f"after {step} steps" if step else "untrained"
    if "error" in result:
        return f"evaluation {weights} failed: {result['error']}"
    low, high = result["success_low"], result["success_high"]
    crashed = f", {result['num_crashed']} of them crashed" if result["num_crashed"] else ""
    return (
        f"success {weights}: {result['num_success']} of {result['num_episodes']} episodes{crashed} "
        "= "
        f"{result['success_rate']:.0%} (95 % interval {low:.0%} to {high:.0%})"
    )

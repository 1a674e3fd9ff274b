"""Which validation is the best: the lowest error that is a number."""

import json
import math
from types import SimpleNamespace

from kata.dist.process_group import ProcessGroup
from kata.train.checkpoint.folder import best_checkpoints
from kata.train.evaluation.callbacks import BestValidation, best_before, validation_callback


def test_an_error_that_is_no_number_is_never_the_best(vector_run, monkeypatch):
    run, best, notes = vector_run("--save_checkpoint=false"), BestValidation(), []
    errors = iter([math.nan, 0.5, math.inf, math.nan, 0.4])
    meter = SimpleNamespace(note=lambda step, kind, figures: notes.append(figures))

    class Judge:
        group = ProcessGroup()

        def __call__(self, policy):
            return {"action_error": next(errors)}

    validate = validation_callback(run, Judge(), SimpleNamespace(), meter, best)
    found = []
    for step in range(1, 6):
        validate(SimpleNamespace(step=step, ema=None, policy=None))
        found.append(best.figures and best.figures["step"])
    assert found == [None, 2, 2, 2, 5]
    assert len(notes) == 5


def test_neither_a_resumed_run_nor_its_folder_takes_one_for_the_best(tmp_path):
    lines = [
        {"kind": "validation", "step": step, "action_error": error}
        for step, error in ((1, "nan"), (2, 0.5), (3, "nan"))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    assert best_before(tmp_path, 3)["step"] == 2
    for step, error in ((1, "NaN"), (2, "0.5"), (3, "NaN")):
        folder = tmp_path / f"best-{step:06d}"
        folder.mkdir()
        (folder / "validation.json").write_text(f'{{"action_error": {error}}}')
    assert best_checkpoints(tmp_path)[0].name == "best-000002"

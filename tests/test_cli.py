"""The command line, as a person types it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_training import config, toy
from torch import nn

pytest.importorskip("typer")

from gradreg import Objective
from gradreg.bench.tables import read
from gradreg.cli.main import main
from gradreg.cli.options import OF_CLASSES
from gradreg.cli.study import _notice
from gradreg.papers.varga2018 import experiments
from gradreg.penalties import PENALTIES
from gradreg.study.compare import Outcome
from gradreg.study.plan import BASELINE

QUICK = ["--runs", "2", "--tuning-runs", "1", "--steps", "8", "--workers", "1"]
ONE_PENALTY = ["--penalties", "spect_reg", "--weights", "spect_reg=0.01,0.1"]


class Shell:
    """Types commands in a folder of its own; nothing may show a traceback."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *words: str, code: int = 0) -> Printed:
        self.monkeypatch.setattr(sys, "argv", ["gradreg", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = Printed(*self.capsys.readouterr())
        assert (end.value.code or 0) == code, printed
        return printed


class Printed(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def gradreg(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path)


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradreg", "compare", "--data", "digit"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_compare_ends_with_table_verdict_and_report_and_resumes(gradreg: Shell, tmp_path: Path) -> None:
    done = gradreg("compare", *QUICK, *ONE_PENALTY)
    assert re.search(r"baseline +\d+\.\d\d \(\d+\.\d\d\)", done.stdout)
    assert "SpectReg" in done.stdout
    assert re.search(r"ifference|improves|worse", done.stdout)
    report = tmp_path / re.search(r"Report: (\S+)", done.stdout)[1]
    assert "<html" in report.read_text()
    assert {p.name for p in report.parent.iterdir()} >= {"index.html", "table.csv", "table.tex", "figures"}
    assert done.stderr.count("\n") == 1, "one line where there is no terminal"
    assert done.stderr.startswith("digits: classification, 10 classes; trains on ")
    records = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/records/*.json")}
    assert len(records) == 3 * 1 + 2 * 2
    again = gradreg("compare", *QUICK, *ONE_PENALTY)
    assert again.stdout == done.stdout
    assert records == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/records/*.json")}
    folder = str(report.parent.parent.relative_to(tmp_path))
    from_records = gradreg("report", folder, "--json")
    assert json.loads(from_records.stdout)["verdict"] in " ".join(done.stdout.split())


@pytest.mark.skipif(os.name != "posix", reason="sends a signal as a terminal does")
def test_interrupted_it_ends_at_once_and_goes_on_later(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gradreg",
        "compare",
        "--out",
        "study",
        "--steps",
        "100",
        "--workers",
        "2",
        *ONE_PENALTY,
    ]
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listening
    )
    records = tmp_path / "study" / "records"
    deadline = time.monotonic() + 90
    while len(list(records.glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches the workers too
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 130
    *_, said = printed.splitlines()
    assert re.fullmatch(r"interrupted: \d+ runs are recorded, and the same command goes on from there.", said)
    assert not list(records.glob("*.tmp"))
    for path in records.iterdir():
        json.loads(path.read_text())


def test_json_is_all_that_is_printed(gradreg: Shell, tmp_path: Path) -> None:
    result = json.loads(gradreg("compare", *QUICK, *ONE_PENALTY, "--json").stdout)
    assert {"verdict", "report"} <= set(result)
    chosen = json.loads(gradreg("tune", *QUICK, *ONE_PENALTY, "--json").stdout)
    assert chosen["SpectReg"]["penalties"][-1]["weight"] in (0.01, 0.1)


def test_tune_never_touches_the_test_data(gradreg: Shell, tmp_path: Path) -> None:
    done = gradreg("tune", *QUICK, *ONE_PENALTY, "--out", "tuned")
    assert "SpectReg: " in done.stdout
    records = [json.loads(path.read_text()) for path in tmp_path.glob("tuned/records/*.json")]
    assert {record["config"]["evaluate_on"] for record in records} == {"validation"}


def test_what_the_choice_of_weights_leaves_open_is_said(gradreg: Shell, tmp_path: Path) -> None:
    chosen = {BASELINE: config(toy())}
    one = Outcome([], chosen, at_edge=("SpectReg", "JacReg", "FrobReg"), undecided=("TopK",))
    edge, undecided = _notice(one, tune_baseline=False).splitlines()
    assert edge.startswith("The best weight of SpectReg, JacReg and FrobReg lies at the edge")
    assert undecided == "Several weights of TopK are equally good on validation data: the first tried is taken."
    assert _notice(Outcome([], chosen), tune_baseline=False) == ""


def test_own_data_need_no_further_option(gradreg: Shell, tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    y = rng.integers(0, 3, 120)
    np.savez(tmp_path / "my.npz", x=rng.normal(size=(120, 4)).astype(np.float32) + y[:, None], y=y)
    done = gradreg("compare", "--data", "my.npz", *QUICK, *ONE_PENALTY)
    assert "runs/my-mlp-" in done.stdout


def test_the_task_of_own_data_can_be_said_and_goes_on_where_it_stopped(gradreg: Shell, tmp_path: Path) -> None:
    lines = [f"{i % 7},{20 + i % 40}" for i in range(400)]
    (tmp_path / "ages.csv").write_text("\n".join(["height,age", *lines]))
    words = ["compare", "--data", "ages.csv", *QUICK, *ONE_PENALTY]
    gradreg.monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    gradreg.monkeypatch.setenv("COLUMNS", "200")
    assert "ages.csv: classification, 40 classes; " in gradreg(*words).stderr
    (classes,) = tmp_path.glob("runs/*")
    assert "ages.csv: regression, 1 to predict; " in gradreg(*words, "--task", "regression").stderr
    (quantity,) = set(tmp_path.glob("runs/*")) - {classes}
    records = list(tmp_path.glob("runs/*/records/*.json"))
    assert all("mse" in path.read_text() for path in quantity.glob("records/*.json"))
    gradreg(*words, "--task", "regression")
    gradreg(*words, "--task", "classification")
    assert list(tmp_path.glob("runs/*/records/*.json")) == records, "the same study"
    assert json.loads(gradreg("data", "info", "ages.csv", "--task", "regression", "--json").stdout)["task"] == "regression"
    assert "mse" in gradreg("train", "--data", "ages.csv", "--task", "regression", "--steps", "5").stdout


@pytest.mark.parametrize("words", [["train"], ["compare", *QUICK, *ONE_PENALTY]], ids=lambda words: words[0])
def test_results_that_few_examples_make_doubtful(gradreg: Shell, tmp_path: Path, words: list[str]) -> None:
    def write(labels: str) -> list[str]:
        (tmp_path / "my.csv").write_text("size,kind\n" + "".join(f"{i % 7},{label}\n" for i, label in enumerate(labels)))
        return [*words, "--data", "my.csv", "--steps", "3"]

    assert "draws to train on, 1 of 2 examples, is all of class b: there" in gradreg(*write("aab"), code=2).stderr
    assert not (tmp_path / "runs").exists(), "nothing is trained before"
    warned = gradreg(*write("a" * 40 + "b" * 20)).stderr
    assert "warning: my.csv has 12 test examples: results on so few may be chance. Add examples." in warned.splitlines()
    warned = gradreg(*write("a" * 200 + "b" * 20 + "c")).stderr
    assert "warning: my.csv has no test examples of c: results say nothing about that. Add examples." in warned.splitlines()
    assert "warning" not in gradreg(*write("ab" * 60)).stderr


def test_balanced_classes_need_no_size(gradreg: Shell, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("size,kind\n" + "".join(f"{i % 7},{'ab'[i % 3 == 0]}\n" for i in range(61)))
    words = ["train", "--data", "my.csv", "--steps", "3", "--balanced"]
    assert json.loads(gradreg(*words, "--json").stdout)["config"]["train_size"] % 2 == 0
    message = gradreg(*words, "--train-size", "31", code=2).stderr
    assert "Use a multiple of 2, such as 30 (--train-size), or balanced=False (no --balanced)." in message


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_that_need_classes_are_known(name: str) -> None:
    objective = Objective(F.mse_loss, PENALTIES[name](weight=1.0))
    with pytest.raises(ValueError, match="needs") if name in OF_CLASSES else nullcontext():
        objective(nn.Linear(2, 1), torch.rand(4, 2), torch.rand(4, 1))


def test_penalties_of_classes_are_refused_for_several_quantities(gradreg: Shell, tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    np.savez(tmp_path / "two.npz", x=rng.normal(size=(100, 3)), y=rng.normal(size=(100, 2)))
    words = ["compare", "--data", "two.npz", *QUICK, "--out", "study", "--penalties"]
    assert "penalty 'jac_reg' needs classes" in gradreg(*words, "spect_reg,jac_reg", code=2).stderr
    assert not (tmp_path / "study").exists(), "nothing is trained before"


def test_regression(gradreg: Shell, tmp_path: Path) -> None:
    done = gradreg("compare", "--data", "sin", *QUICK)  # without those penalties that need classes
    assert "error" in done.stdout.lower() or "mse" in done.stdout.lower()


def test_train_saves_a_model_that_three_lines_load(gradreg: Shell, tmp_path: Path) -> None:
    done = gradreg("train", "--steps", "20", "--penalty", "spect_reg=0.01", "--out", "model", "--tensorboard", "board")
    assert re.search(r"accuracy +\d+\.\d\d %", done.stdout)
    lines = done.stdout.split("To use it:")[1].strip().splitlines()
    assert len(lines) == 3
    code = "import torch; x = torch.rand(2, 1, 8, 8)\n" + "\n".join(line.strip() for line in lines) + "\nprint(output.shape)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "[2, 10]" in shown
    assert list((tmp_path / "board").iterdir())


def test_train_says_on_how_many_examples(gradreg: Shell) -> None:
    said = gradreg("train", "--steps", "5").stderr
    assert said == (
        "digits: classification, 10 classes; trains on 100 of 1258 examples (--train-size), 300 of them are for validation, "
        "539 others to test on; mlp, 5 steps.\n"
    )
    assert gradreg("train", "--steps", "5", "--json").stderr == ""
    assert "error: training diverged" in gradreg("train", "--learning-rate", "1e30", "--steps", "5", code=2).stderr


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_runs_that_are_not_trained_together_are_said_once_in_one_line(gradreg: Shell, tmp_path: Path, workers: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n    def __init__(self, num_outputs):\n        super().__init__(64, num_outputs)\n"
        "    def forward(self, x):\n        return super().forward(x.flatten(1)) * (1 if x.sum() > 0 else -1)\n"
    )
    _, said = gradreg("compare", *QUICK, *ONE_PENALTY, "--model", "mine.py:Net", "--workers", workers).stderr.splitlines()
    assert said.startswith("warning: mine.py:Net: runs are trained one by one (")


def test_a_model_of_ones_own(gradreg: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef small(num_outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs))\n"
    )
    gradreg("compare", "--model", "mine.py:small", *QUICK, *ONE_PENALTY)
    before = len(list(tmp_path.glob("runs/*/records/*.json")))
    (tmp_path / "mine.py").write_text(
        (tmp_path / "mine.py").read_text().replace("nn.Flatten(),", "nn.Flatten(), nn.ReLU(),")
    )
    gradreg("compare", "--model", "mine.py:small", *QUICK, *ONE_PENALTY)
    assert len(list(tmp_path.glob("runs/*/records/*.json"))) == 2 * before, "a changed model is another run"
    (tmp_path / "bad.py").write_text(
        "from torch import nn\ndef wide(num_outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_outputs))\n"
        "def flat():\n    return nn.Flatten()\n"
        "class Several(nn.Flatten):\n    def forward(self, x):\n        return x, x\n"
    )
    (tmp_path / "broken.py").write_text("def net(:\n")
    for name, message in {
        "bad.py:wide": "--model bad.py:wide, on a batch of shape (2, 1, 8, 8): RuntimeError",
        "bad.py:flat": "gives (2, 64) for a batch of 2, expected (2, 10)",
        "bad.py:Several": "the model returned tuple, expected a tensor or an object with .logits. Wrap the model",
        "broken.py:net": "SyntaxError",
    }.items():
        assert message in gradreg("compare", "--model", name, code=2).stderr


def test_a_model_whose_output_holds_its_logits(gradreg: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from types import SimpleNamespace\nfrom torch import nn\n"
        "class Plain(nn.Module):\n    def __init__(self, num_outputs):\n"
        "        super().__init__()\n        self.head = nn.Linear(64, num_outputs)\n"
        "    def forward(self, x):\n        return self.head(x.flatten(1))\n"
        "class Wrapped(Plain):\n    def forward(self, x):\n        return SimpleNamespace(logits=super().forward(x))\n"
    )
    for words in (["train", "--steps", "5"], ["compare", *QUICK, *ONE_PENALTY]):
        plain, wrapped = (gradreg(*words, "--model", f"mine.py:{name}", "--json").stdout for name in ("Plain", "Wrapped"))
        assert numbers(wrapped) == numbers(plain)


def numbers(printed: str) -> dict:
    """The results in what was printed as JSON."""
    return {name: value for name, value in json.loads(printed).items() if name in ("metrics", "arms")}


def test_a_class_beside_its_blocks_is_trained_and_loaded_from_other_folders(gradreg: Shell, tmp_path: Path) -> None:
    for folder in ("code", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "code" / "blocks_of_mine.py").write_text("from torch.nn import Flatten, Linear, Sequential")
    (tmp_path / "code" / "mine.py").write_text(
        "from blocks_of_mine import Flatten, Linear, Sequential\n"
        "class Net(Sequential):\n    def __init__(self, num_outputs):\n"
        "        super().__init__(Flatten(), Linear(64, num_outputs))\n"
    )
    gradreg("compare", "--model", "code/mine.py:Net", *QUICK, *ONE_PENALTY, "--workers", "2")
    gradreg("train", "--model", "code/mine.py:Net", "--steps", "5", "--out", "model")
    code = "from gradreg.training.checkpoint import load_model as load; print(type(load('../model').model).__name__)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert shown.stdout == "Net\n", shown.stderr


def test_a_narrow_terminal_keeps_every_column(gradreg: Shell) -> None:
    gradreg("compare", *QUICK, *ONE_PENALTY, "--out", "study")
    gradreg.monkeypatch.setenv("COLUMNS", "50")
    table = gradreg("report", "study").stdout
    assert "baseline" in table
    assert "p (Holm)" in table


def test_list_and_data(gradreg: Shell, tmp_path: Path) -> None:
    assert "spect_reg" in gradreg("list").stdout
    assert "double_back" in json.loads(gradreg("list", "--json").stdout)["penalties"]
    assert "digits" in gradreg("data", "list").stdout


def test_data_info_names_the_columns_that_are_categories(gradreg: Shell, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("size,colour,kind\n1,red,a\n2,blue,b\n3,red,a\n4,green,b\n")
    shown = " ".join(gradreg("data", "info", "my.csv").stdout.split())
    assert "columns of categories │ colour: 3" in shown
    facts = json.loads(gradreg("data", "info", "my.csv", "--json").stdout)
    assert facts["columns_of_categories"] == {"colour": 3}
    assert facts["columns"] == {"size": [], "colour": ["blue", "green", "red"]}
    assert list(facts["columns"]) == ["size", "colour"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--data", "digit"], "digits"),
        (["compare", "--data", "nowhere.npz"], "nowhere.npz"),
        (["compare", "--data", "mnist", "--data-dir", "."], "gradreg data prepare mnist"),
        (["compare", "--penalties", "specter"], "penalty 'specter' is unknown"),
        (["compare", "--weights", "spect_reg=a"], "expected name=weight,weight"),
        (["compare", "--weights", "frob_reg=1"], "which --penalties does not name"),
        (["compare", "--model", "lenet5"], "model 'lenet5' is unknown"),
        (["compare", "--optimizer", "adamw"], "choose adam or sgd"),
        (["compare", "--search", "random"], "choose grid or optuna"),
        (["compare", "--precision", "fp8"], "choose fp32, tf32, bf16 or fp64"),
        (["compare", "--engine", "steam"], "choose double_backward, linearized"),
        (["compare", "--train-size", "100000"], "100000"),
        (["train", "--penalty", "spect_reg"], "expected name=weight"),
        (["train", "--device", "cuda:7"], "no CUDA device here"),
        (["train", "--penalty", "spect_reg=-1"], "must be a finite number of at least 0"),
        (["report", "nowhere"], "run gradreg compare first"),
        (["compare", "--penalties", ""], "--penalties is empty"),
        (["compare", "--weights", "spect_reg="], "no weight is given"),
        (["compare", "--weights", "spect_reg=1", "--weights", "SpectReg=2"], "given twice for one penalty"),
        (["compare", "--learning-rate", "inf"], "must be a finite number"),
        (["compare", "--dropout", "1"], "choose a rate below 1"),
        (["compare", "--out", __file__], "is no folder and cannot be made one"),
        (["train", "--out", __file__], "is no folder and cannot be made one"),
        (["train", "--data", ""], "--data is empty"),
        (["compare", "--task", "regression"], "task='regression' does not apply to digits"),
        (["data", "info", "sin", "--task", "classification"], "task='classification' does not apply to sin"),
        (["compare", "--data", "sin", "--penalties", "spect_reg,jac_reg"], "penalty 'jac_reg' needs classes, and the"),
        (["tune", "--data", "sin", "--penalties", "LabelSmoothing"], "choose from spect_reg, double_back, frob_reg"),
        (["train", "--data", "sin", "--penalty", "one_hot=1"], "--task classification"),
        (["train", "--task", "ranking"], "task='ranking' is unknown: choose classification or regression"),
        (["train", "--device", "meta"], "choose cpu, cuda or"),
        (["compare", "--data", "sin@authors"], "there are none to choose weights on. Use it with gradreg train"),
        (["reproduce", "table3", "--show", "--out", "nowhere"], "there are no results of these in nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_gets_one_line_and_exit_code_2(gradreg: Shell, words: list[str], message: str) -> None:
    done = gradreg(*words, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in " ".join(done.stderr.split())


def test_help_teaches_and_its_surface_is_frozen(gradreg: Shell, tmp_path: Path) -> None:
    text = gradreg("compare", "--help").stdout
    found = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"}
    assert found == {
        *(
            "--data",
            "--model",
            "--penalties",
            "--runs",
            "--tuning-runs",
            "--weights",
            "--search",
            "--tune-baseline",
            "--train-size",
        ),
        *(
            "--validation-size",
            "--balanced",
            "--label",
            "--image-size",
            "--task",
            "--data-dir",
            "--steps",
            "--batch-size",
            "--optimizer",
        ),
        *(
            "--learning-rate",
            "--weight-decay",
            "--dropout",
            "--precision",
            "--engine",
            "--device",
            "--workers",
            "--out",
            "--json",
        ),
    }
    assert "goes on where it stopped" in " ".join(text.split())


def test_bench_writes_a_table_and_a_file(gradreg: Shell, tmp_path: Path) -> None:
    methods = ["--method", "plain", "--method", "textbook", "--method", "double_backward"]
    printed = gradreg("bench", "--model", "mlp", *methods, "--steps", "1", "--out", "found", "--device", "cpu").stdout
    assert "| mlp | 50 | 10 | fp32 | double_backward | spect_reg |" in printed
    (file,) = (tmp_path / "found").iterdir()
    assert file.name.startswith("engines_fp32_cpu-")
    assert file.read_text().startswith("model,method,penalty,batch_size,num_classes,precision,ms,low_ms,high_ms,memory_mib")
    assert [row.method for row in read(file)] == ["plain", "textbook", "double_backward"]


def test_bench_of_a_fleet(gradreg: Shell) -> None:
    printed = gradreg("bench", "--model", "mlp", "--fleet", "2", "--steps", "1", "--out", "found", "--device", "cpu").stdout
    assert "| mlp | 50 | 10 | fp32 | fleet of 2 | spect_reg |" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "vgg"], "choose mlp, lenet"),
        (["--method", "warp"], "--method 'warp' is unknown: choose plain, plain compiled, textbook"),
        (["--penalty", "nothing"], "--penalty 'nothing' is unknown: choose spect_reg"),
        (["--precision", "fp8"], "--precision 'fp8' is unknown: choose fp32, tf32, bf16"),
    ],
)
def test_bench_says_what_it_has(gradreg: Shell, words: list[str], says: str) -> None:
    assert says in gradreg("bench", *words, code=2).stderr


def test_bench_by_number_of_classes(gradreg: Shell, tmp_path: Path) -> None:
    sizes = ["--num-classes", "2", "--num-classes", "3", "--method", "plain", "--method", "double_backward"]
    gradreg("bench", "--model", "mlp", *sizes, "--penalty", "frob_reg", "--steps", "1", "--out", "found", "--device", "cpu")
    (file,) = (tmp_path / "found").iterdir()
    assert file.name.startswith("engines_by_classes_fp32_cpu-")
    assert [(row.num_classes, row.penalty) for row in read(file)] == [(2, ""), (2, "frob_reg"), (3, ""), (3, "frob_reg")]


RESULTS = str(Path(__file__).parent.parent / "results" / "varga2018")


def test_reproduce_shows_what_is_recorded(gradreg: Shell) -> None:
    printed = gradreg("reproduce", "table3", "--show", "--out", RESULTS).stdout
    assert "| CP    | DoubleBack | 98.07 (0.09) |" in printed
    assert "of the paper's claims come out its way" in printed
    assert Path("runs/varga2018/authors_code/index.html").is_file()


def test_reproduce_as_json_for_one_dataset(gradreg: Shell) -> None:
    (table,) = json.loads(gradreg("reproduce", "table1", "--data", "mnist", "--show", "--json", "--out", RESULTS).stdout)
    assert {cell["row"] for cell in table["cells"]} == {"small MNIST"}


def test_reproduce_takes_a_dataset_whoever_drew_from_it(gradreg: Shell) -> None:
    shown = json.loads(gradreg("reproduce", "all", "--data", "sin", "--show", "--json", "--out", RESULTS).stdout)
    assert {"table7", "sin_domain"} <= {table["id"] for table in shown}


def test_reproduce_runs_what_is_missing(gradreg: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    known = experiments()["table7"]
    cells = tuple(replace(c, config=replace(c.config, num_steps=3, num_evaluations=1)) for c in known.cells[:2])
    small = replace(known, cells=cells, claims=())
    monkeypatch.setattr("gradreg.cli.reproduce.experiments", lambda _: {"table7": small})
    printed = gradreg("reproduce", "all", "--runs", "2", "--out", "found", "--device", "cpu", "--workers", "1").stdout
    assert "2 of 2 published cells run" in printed
    assert Path("found/authors_code/table7.json").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["table9"], "experiment 'table9' is unknown: choose table1"),
        (["all", "--protocol", "x"], "protocol 'x' is unknown"),
        (["all", "--data", "cifr10"], "--data 'cifr10': there is no cell with it here; choose mnist"),
        (["table7", "--tuned", "--show"], "--tuned: table7 has no weights to choose, is about the weights themselves"),
    ],
)
def test_reproduce_names_mistakes(gradreg: Shell, words: list[str], says: str) -> None:
    assert says in gradreg("reproduce", *words, code=2).stderr


def test_list_names_the_experiments(gradreg: Shell) -> None:
    assert "table7" in json.loads(gradreg("list", "--json").stdout)["experiments"]
    assert "train_size" in gradreg("list").stdout


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_one_that_started_them(how: signal.Signals, tmp_path: Path) -> None:
    """The terminal is free again at once: whoever reads what is printed sees the end of it."""
    words = ["compare", "--out", "study", "--steps", "20000", "--workers", "2", *ONE_PENALTY]
    command = [sys.executable, "-m", "gradreg", *words]
    printed = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **printed)
    try:
        deadline = time.monotonic() + 60
        while len(members(process.pid)) < 4 and time.monotonic() < deadline:  # two workers, and who cleans up after them
            time.sleep(0.1)
        time.sleep(4)  # until they train
        os.kill(process.pid, how)
        process.communicate(timeout=30)
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def members(group: int) -> list[str]:
    """The processes of a group that are no zombies."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in listed if line.split()[0] == str(group) and "Z" not in line]


def test_a_page_that_cannot_be_written_does_not_hide_the_table(gradreg: Shell, tmp_path: Path) -> None:
    gradreg("compare", *QUICK, *ONE_PENALTY, "--out", "study")
    shutil.rmtree(tmp_path / "study" / "report")
    (tmp_path / "study" / "report").write_text("in the way")
    shown = gradreg("report", "study")
    assert "SpectReg" in shown.stdout
    assert "warning: the page cannot be written to study/report" in shown.stderr
    assert json.loads(gradreg("report", "study", "--json").stdout)["report"] is None


def test_a_report_counts_what_other_machines_ran(gradreg: Shell, tmp_path: Path) -> None:
    same = ["--tuning-runs", "1", "--steps", "8", "--workers", "1", *ONE_PENALTY]
    gradreg("compare", "--runs", "2", *same, "--out", "here")
    gradreg("compare", "--runs", "4", *same, "--out", "there")
    shutil.copytree(tmp_path / "there" / "records", tmp_path / "here" / "records", dirs_exist_ok=True)
    assert [len(arm["seeds"]) for arm in json.loads(gradreg("report", "here", "--json").stdout)["arms"]] == [4, 4]
    again = gradreg("compare", "--runs", "2", *same, "--out", "here", "--json").stdout
    assert [len(arm["seeds"]) for arm in json.loads(again)["arms"]] == [2, 2]


def test_probabilities_are_no_logits(gradreg: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(num_outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs), nn.Softmax(1))\n"
    )
    said = gradreg("train", "--steps", "2", "--model", "mine.py:net").stderr
    assert "warning: --model mine.py:net gives probabilities where logits are expected" in said
    assert "write mine.py:..." in gradreg("train", "--model", "mine:net", code=2).stderr


def test_a_last_model_on_all_that_there_is(gradreg: Shell) -> None:
    said = gradreg("train", "--steps", "2", "--train-size", "1258", "--validation-size", "0").stderr
    assert "trains on 1258 of 1258 examples (--train-size), 0 of them are for validation" in said


def test_results_of_two_folders_have_a_page_each(gradreg: Shell) -> None:
    printed = gradreg("reproduce", "table7", "--runs", "1", "--protocol", "short", "--show", "--out", RESULTS, code=2).stderr
    assert "there are no results" in printed
    assert (
        gradreg("reproduce", "table7", "--show", "--out", RESULTS)
        .stdout.strip()
        .endswith("runs/varga2018/authors_code/index.html")
    )


def test_a_comparison_ends_with_the_command_that_trains_its_best_arm(gradreg: Shell, tmp_path: Path) -> None:
    words = ["--train-size", "50", "--balanced", "--learning-rate", "0.002", "--weight-decay", "0", "--data", "digits"]
    shown = gradreg("compare", *QUICK, *ONE_PENALTY, *words, "--out", "study").stdout
    (command,) = re.findall(r"A model of \w+: gradreg (.*)", shown)
    gradreg(*shlex.split(command))
    record = json.loads((tmp_path / "model" / "record.json").read_text())
    arms = [json.loads(path.read_text()) for path in (tmp_path / "study" / "records").iterdir()]
    assert [one["metrics"] for one in arms if one["config"] | {"arm": ""} == record["config"] | {"arm": ""}]


def test_a_report_has_every_arm_also_of_runs_that_two_share(gradreg: Shell) -> None:
    words = ["--penalties", "weight_decay", "--weights", "weight_decay=0.0005", "--out", "study"]
    shown = json.loads(gradreg("compare", *QUICK, *words, "--json").stdout)
    again = json.loads(gradreg("report", "study", "--json").stdout)
    assert [arm["arm"] for arm in again["arms"]] == ["baseline", "WeightDecay"]
    assert again["arms"] == shown["arms"]

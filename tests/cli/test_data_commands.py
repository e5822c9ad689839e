"""The command line on data sets, partitions, models and devices by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import undrift as ud
from tests.data.mnist import write_mnist

pytestmark = pytest.mark.usefixtures("empty_machine")
TINY = ["--rounds", "2", "--clients", "5", "--quiet"]


def test_data_list_says_where_everything_is(call, tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    code, out, _ = call("data", "list", "--data-dir", str(tmp_path))
    assert code == 0
    for name in ud.data.NAMES:
        assert name in out
    assert str(tmp_path / "mnist") in out
    assert "downloaded when first used" in out
    assert "put LEAF's" in out


def test_data_show_prints_sizes_and_labels_and_writes_the_heat_map(
    call,
    tmp_path: Path,
) -> None:
    code, out, _ = call(
        "data", "show", "digits", "--partition", "shards:2", "--clients", "30", "--json",
        "--out", str(tmp_path / "x"),
    )  # fmt: skip
    assert code == 0
    shown = json.loads(out.splitlines()[-1])
    data = ud.data.digits()
    parts = ud.data.shards(data.train[1], 30, seed=0)
    expected = [np.bincount(data.train[1][part].numpy(), minlength=10).tolist() for part in parts]
    assert shown["labels"] == expected
    assert shown["sizes"] == [len(part) for part in parts]
    assert (tmp_path / "x" / "partition.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("data", "show", "digits", "--clients", "7", "--out", str(tmp_path / "y"))
    assert "7 clients; samples each: 205; labels each: " in out
    assert "1435 of 1438 samples dealt" in out


def test_data_show_of_many_labels(call, tmp_path: Path) -> None:
    """Sixty-two columns would not fit: their totals come below the table."""
    for part, count in (("train", 3), ("test", 1)):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        images = {"x": [[0.5] * 784] * count, "y": [7] * count}
        content = {"users": ["a"], "num_samples": [count], "user_data": {"a": images}}
        (tmp_path / "femnist" / part / "all.json").write_text(json.dumps(content))
    out = ["--out", str(tmp_path / "x")]
    code, shown, err = call("data", "show", "femnist", "--partition", "natural", *out,
                            "--data-dir", str(tmp_path))  # fmt: skip
    assert code == 0, err
    assert ", 6 0, 7 3, 8 0, " in " ".join(shown.split())


def test_a_data_set_in_a_folder_and_a_model_with_options(
    call,
    tmp_path: Path,
) -> None:
    write_mnist(tmp_path / "mnist")
    code, out, err = call(
        "run", "fedavg", *TINY, "--data", "mnist", "--data-dir", str(tmp_path), "--model",
        "netfleet-cnn:padding=1", "--partition", "iid", "--work", "epochs:1", "--batch-size", "2",
        "--out", str(tmp_path / "x"), "--json",
    )  # fmt: skip
    assert code == 0, err
    final = json.loads(out.splitlines()[-1])
    # Two rounds of two clients, 10,330 float32 parameters each way.
    assert final["bytes"] == 2 * 2 * 2 * 4 * 10_330
    assert final["simulated_seconds"] is None


def test_devices_give_a_clock_and_a_deadline_gives_steps(
    call,
    tmp_path: Path,
) -> None:
    arguments = [
        "run", "fedavg", *TINY, "--fleet", "phone:4,gpu-node:1", "--work", "deadline:1:2",
        "--slowdown", "stragglers:0.5:3", "--failures", "0.3", "--participation", "1.0",
    ]  # fmt: skip
    code, out, err = call(*arguments, "--out", str(tmp_path / "x"), "--json")
    assert code == 0, err
    records = [
        json.loads(line) for line in (tmp_path / "x" / "records.jsonl").read_text().splitlines()
    ]
    final = json.loads(out.splitlines()[-1])
    assert final["simulated_seconds"] == pytest.approx(sum(r["simulated_seconds"] for r in records))
    assert all(0 < record["simulated_seconds"] <= 1 for record in records)
    assert "simulated s" in err
    assert "in use %" in err


def test_a_comparison_shows_the_clock(call, tmp_path: Path) -> None:
    code, out, err = call(
        "compare", "fedavg", "fedspeed", *TINY, "--work", "steps:2", "--fleet", "raspberry-pi",
        "--out", str(tmp_path / "x"), "--json",
    )  # fmt: skip
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    once, twice = (summary[name]["simulated_seconds"][0] for name in ("FedAvg", "FedSpeed"))
    assert 0 < once < twice  # two gradients a step


def test_a_trace_decides_who_is_there(call, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("client,start,end\n2,0,1\n")
    code, _, err = call(
        "run", "fedavg", *TINY, "--work", "steps:1", "--fleet", "gpu-node", "--trace",
        str(tmp_path / "trace.csv"), "--trace-period", "10", "--out", str(tmp_path / "x"),
    )  # fmt: skip
    assert code == 0, err
    records = (tmp_path / "x" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["clients"] for line in records] == [1, 1]


BAD = {
    "data": (["--data", "minst"], "the nearest is 'mnist'"),
    "folder": (["--data", "mnist", "--data-dir", "nowhere"], "a folder that exists"),
    "partition": (["--partition", "dirichlt:0.1"], "the nearest is 'dirichlet'"),
    "alpha": (["--partition", "dirichlet:0"], "alpha > 0"),
    "classes": (["--partition", "classes:11"], "classes"),
    "clients": (["--clients", "2000"], "use fewer clients"),
    "natural": (["--partition", "natural"], "natural clients"),
    "model": (["--model", "resnet-18"], "resnet18-gn"),
    "option": (["--model", "mlp:hiden=3"], "the nearest is 'hidden'"),
    "option form": (["--model", "mlp:hidden"], "options such as"),
    "features": (["--model", "cnn2"], "cnn2 needs images"),
    "devices": (["--fleet", "fone"], "the nearest is 'phone'"),
    "slowdown": (["--fleet", "phone", "--slowdown", "stragglers:x"], "a form such as"),
    "slowdown law": (["--fleet", "phone", "--slowdown", "stragglers:0.1:0.5"], "factor >= 1"),
    "failures": (["--failures", "0.1"], "the kind of devices"),
    "trace": (["--fleet", "phone", "--trace", "nowhere.csv"], "No such file"),
    "period": (["--trace-period", "3"], "a trace beside it"),
    "deadline": (["--work", "deadline:60"], "the clients' devices"),
    "a peer's deadline": (
        ["--fleet", "phone", "--work", "deadline:1"],
        "a fixed number of steps",
    ),
    "alpha twice": (["--partition", "dirichlet:0.3", "--dirichlet", "0.9"], "say it once"),
    "alpha for nothing": (["--partition", "iid", "--dirichlet", "0.9"], "a Dirichlet partition"),
    "train samples": (["--train-samples", "2000"], "train_samples in 1...1438"),
    "no train samples": (["--train-samples", "0"], "data.train_samples needs a number >= 1"),
    "few train samples": (
        ["--train-samples", "5", "--partition", "iid"],
        "each of 20 clients, got 5",
    ),
    "test samples": (["--test-samples", "400"], "test_samples in 1...359"),
    "texts": (["--model", "char-lstm"], "token ids as whole numbers"),
    "deadline form": (["--work", "deadline"], "a form such as"),
    "evaluate": (["--evaluate-every", "0"], "evaluation.every needs a number >= 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, case: str, tmp_path: Path) -> None:
    options, message = BAD[case]
    method = "dsgd" if case == "a peer's deadline" else "fedavg"
    code, _, err = call("run", method, *options, "--out", str(tmp_path / "never"))
    assert code in (1, 2), err
    assert message in " ".join(err.split())
    assert err.count("Error:") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "never").exists()


def test_our_words_are_not_the_tokens_of_a_pretrained_model(
    call,
    tmp_path: Path,
) -> None:
    for split in ("train", "test"):
        for i, sentiment in enumerate(("neg", "pos") * 10):
            folder = tmp_path / "imdb" / "aclImdb" / split / sentiment
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}_1.txt").write_text("good film")
    options = ["--data", "imdb", "--data-dir", str(tmp_path), "--model", "distilbert"]
    code, _, err = call("run", "fedavg", *TINY, *options, "--out", str(tmp_path / "never"))
    assert code == 2
    assert "its own tokenizer" in err


def test_a_data_set_that_cannot_be_had_is_one_sentence(call, tmp_path: Path) -> None:
    code, _, err = call("data", "show", "celeba", "--out", str(tmp_path / "never"))
    assert code == 1
    assert "put LEAF's" in " ".join(err.split())
    assert "Traceback" not in err

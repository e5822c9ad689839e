"""Exported models: read back bit for bit, refused with names where they do not fit."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import undrift
from undrift import models
from undrift.errors import UndriftError
from undrift.results import onnx
from undrift.results.export import load_safetensors, save_safetensors
from undrift.results.onnx import save_onnx

ONNX_MODELS = {"mlp": (6,)}
LONG_ONNX_MODELS = {
    "cnn2": (1, 28, 28),
    "logistic": (6,),
    "netfleet-cnn": (1, 28, 28),
    "femnist-cnn": (1, 28, 28),
    "celeba-cnn": (3, 84, 84),
    "resnet20": (3, 32, 32),
    "resnet18-gn": (3, 32, 32),
    "alexnet": (3, 32, 32),
    "vgg19": (3, 32, 32),
    "char-lstm": (80,),
    "text": (256,),
}


def build(name: str, shape: tuple[int, ...], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.build(name, shape=shape, classes=10)


def mixed() -> nn.Module:
    """A buffer, a scalar, two types and tied weights."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 2, dtype=torch.bfloat16))
    model[1].weight = model[0].weight
    model.register_buffer("steps", torch.tensor(7))
    return model


# safetensors


def test_a_model_comes_back_bit_for_bit_with_its_metadata(tmp_path: Path) -> None:
    model, other = mixed(), mixed()
    path = save_safetensors(model, tmp_path / "new" / "model.safetensors", {"method": "FedAvg"})
    told = load_safetensors(other, path)
    assert told["method"] == "FedAvg"
    assert told["undrift"] == undrift.__version__
    for name, leaf in model.state_dict().items():
        assert torch.equal(leaf, other.state_dict()[name]), name
        assert leaf.dtype == other.state_dict()[name].dtype
    assert other[1].weight is other[0].weight
    assert [each.name for each in path.parent.iterdir()] == ["model.safetensors"]


def test_others_can_read_it(tmp_path: Path) -> None:
    model = build("mlp", (6,))
    path = save_safetensors(model, tmp_path / "m.safetensors", {"round": "3"})
    with safe_open(path, "np") as file:
        assert sorted(file.keys()) == sorted(model.state_dict())
        assert file.metadata()["round"] == "3"
        for name, leaf in model.state_dict().items():
            assert np.array_equal(file.get_tensor(name), leaf.numpy())


def test_saving_leaves_the_model_alone(tmp_path: Path) -> None:
    model = build("cnn2", (1, 16, 16)).train()
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    save_safetensors(model, tmp_path / "m.safetensors")
    assert model.training
    assert all(torch.equal(before[name], leaf) for name, leaf in model.state_dict().items())


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    path = save_safetensors(nn.Linear(2, 2), tmp_path / "m.safetensors")
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="load_safetensors needs the tensors of the model") as told:
        load_safetensors(model, path)
    assert "without '0.weight', '0.bias', '1.weight' and 1 more, with 'bias', 'weight'; " in str(
        told.value
    ).replace("with 'weight', 'bias'", "with 'bias', 'weight'")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(3, 2), r"needs 'weight' as \(2, 3\) torch.float32, got \(2, 2\) torch.float32"),
        (nn.Linear(2, 2).double(), r"needs 'weight' as \(2, 2\) torch.float64, got \(2, 2\) torch"),
    ],
    ids=["shape", "type"],
)
def test_another_shape_or_type_is_refused_and_nothing_copied(
    model: nn.Module, said: str, tmp_path: Path
) -> None:
    path = save_safetensors(nn.Linear(2, 2), tmp_path / "m.safetensors")
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=said):
        load_safetensors(model, path)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_changed_bit_is_noticed(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    path = save_safetensors(model, tmp_path / "m.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UndriftError, match="whose tensors do not match its hash; export it again"):
        load_safetensors(model, path)


def test_a_file_without_our_hash_is_taken(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = nn.Linear(1, 1)
    save_file({"weight": torch.tensor([[2.0]]), "bias": torch.tensor([3.0])}, tmp_path / "m")
    assert load_safetensors(model, tmp_path / "m") == {}
    assert (model.weight.item(), model.bias.item()) == (2.0, 3.0)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"rubbish that is no header", (200).to_bytes(8, "little") + b"{}"],
    ids=["absent", "empty", "rubbish", "cut"],
)
def test_no_file_and_no_safetensors_file(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UndriftError, match=r"needs a readable safetensors file, got '.*m\.safet"):
        load_safetensors(nn.Linear(1, 1), path)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"round": 3}, r"metadata of text only, got \{'round': 3\}; use str\(\)"),
        ({"undrift": "2"}, "metadata beside undrift, content_sha256, got 'undrift'"),
    ],
    ids=["number", "taken"],
)
def test_bad_metadata(metadata: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        save_safetensors(nn.Linear(1, 1), tmp_path / "m", metadata)
    assert list(tmp_path.iterdir()) == []


def test_without_room_the_earlier_file_stays(tmp_path: Path) -> None:
    path = save_safetensors(nn.Linear(1, 1), tmp_path / "m.safetensors")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UndriftError, match="writable place with room, got File too large at"):
            save_safetensors(nn.Linear(50, 50), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# ONNX


def example(name: str, shape: tuple[int, ...], batch: int) -> Tensor:
    if name in ("char-lstm", "text"):
        return torch.randint(1, 10, (batch, *shape))
    return torch.randn(batch, *shape)


def assert_same_outputs(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever the size of the batch."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = build(name, shape)
    path = tmp_path / "model.onnx"
    difference = save_onnx(model, example(name, shape, 1), path)
    assert difference is not None
    assert difference < 1e-5
    onnx.checker.check_model(str(path), full_check=True)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    model.eval()
    for batch in (1, 4):
        inputs = example(name, shape, batch)
        (got,) = session.run(["output"], {"input": inputs.numpy()})
        assert np.abs(got - model(inputs).detach().numpy()).max() < 1e-5
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ONNX_MODELS)
def test_onnx_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    assert_same_outputs(name, ONNX_MODELS[name], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_ONNX_MODELS)
def test_onnx_computes_what_a_large_model_does(name: str, tmp_path: Path) -> None:
    assert_same_outputs(name, LONG_ONNX_MODELS[name], tmp_path)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x)
        return y if x.sum() > 0 else -y


class OfTwo(Branching):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x.reshape(2, 2))
        return y


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Branching(), "save_onnx needs a model that torch can export, got Branching: Guard"),
        (OfTwo(), "save_onnx needs a model for any batch size, got OfTwo which takes 2 only; use"),
    ],
    ids=["branching", "fixed-batch"],
)
def test_a_model_that_onnx_has_not_is_one_sentence(
    model: nn.Module, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    with pytest.raises(UndriftError, match=said) as told:
        save_onnx(model, torch.ones(2, 2), tmp_path / "m.onnx")
    assert "\n" not in str(told.value)
    assert model.training
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_onnx_with_other_outputs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    model = nn.Linear(2, 2)
    converted = onnx._converted

    def off(given: nn.Module, *rest: object) -> bytes:
        content = converted(given, *rest)  # type: ignore[arg-type]
        with torch.no_grad():
            given.bias.add_(1e-3)  # as if the conversion had lost it
        return content

    monkeypatch.setattr(onnx, "_converted", off)
    with pytest.raises(UndriftError, match=r"needs outputs within 0\.0001 of torch's, got 0\.001"):
        save_onnx(model, torch.ones(2, 2), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_onnx_without_its_packages(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absent == "onnxscript":
        pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(UndriftError) as told:
        save_onnx(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "m.onnx")
    assert str(told.value) == (
        f"save_onnx needs the package {absent}, which is not installed; "
        "pip install 'undrift[onnx]'."
    )


def test_onnx_without_onnxruntime_is_written_and_leaves_every_part_in_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 2)).train()
    model[2].eval()
    assert save_onnx(model, torch.ones(3, 2), tmp_path / "m.onnx") is None
    assert [part.training for part in model.modules()] == [True, True, True, False]
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
    written = onnx.load(tmp_path / "m.onnx")
    assert {node.op_type for node in written.graph.node} <= {"Gemm", "MatMul", "Add", "Transpose"}


@pytest.mark.parametrize(
    "inputs", [torch.tensor(1.0), torch.ones(0, 2), [[1.0]]], ids=["scalar", "empty", "list"]
)
def test_onnx_needs_a_batch(inputs: Tensor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_onnx needs example_input as a batch of one or more"):
        save_onnx(nn.Linear(2, 2), inputs, tmp_path / "m.onnx")


def test_the_header_is_plain_json(tmp_path: Path) -> None:
    content = save_safetensors(nn.Linear(1, 1), tmp_path / "m").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert set(header["__metadata__"]) == {"undrift", "content_sha256"}

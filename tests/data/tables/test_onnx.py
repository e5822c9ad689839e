"""The preprocessing of a table around a net in ONNX, as onnxruntime computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from undrift.data import read_table
from undrift.data.tables.onnx import completed, fed
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.score import score
from undrift.errors import UndriftError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    made = pd.DataFrame(
        {
            "age": rng.normal(1e6, 3.0, rows),  # which single precision could not tell apart
            "ward": rng.choice(["a", "b", "c"], rows),
            "died": rng.choice(["no", "yes"], rows),
            "cost": rng.normal(500, 100, rows),
        }
    )
    made.loc[::7, "age"] = np.nan
    made.loc[::5, "ward"] = None
    return made


def linear(features: int, outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, outputs)


def as_onnx(net: nn.Linear) -> bytes:
    """Return the ONNX file of a linear net, as `save_onnx` names its ends."""
    make, array = onnx.helper, onnx.numpy_helper.from_array
    sizes = (("input", net.in_features), ("output", net.out_features))
    ends = [make.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", s]) for n, s in sizes]
    constants = [array(p.detach().numpy(), name) for name, p in net.named_parameters()]
    node = make.make_node("Gemm", ["input", "weight", "bias"], ["output"], transB=1)
    graph = make.make_graph([node], "net", ends[:1], ends[1:], constants)
    opsets = [make.make_opsetid("", 18)]
    content: bytes = make.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
    return content


def exported(
    target: str, outputs: int | None = None, **options: Any
) -> tuple[bytes, nn.Module, Preprocessing]:
    drop = ["cost" if target == "died" else "died"]
    stored = read_table(frame(), target=target, drop=drop, missing="impute", **options)
    fitted = stored.preprocessing
    assert fitted is not None
    net = linear(len(fitted.features), outputs or max(1, stored.classes))
    return completed(net, fitted, as_onnx(net)), net, fitted


@pytest.mark.parametrize(("target", "outputs"), [("died", 2), ("died", 1), ("cost", 1)])
def test_rows_of_a_table_become_the_predictions_of_the_model(target: str, outputs: int) -> None:
    content, net, fitted = exported(target, outputs)
    rows = frame(20).assign(ward=[*"abcz", None, "", *"ab" * 7])
    filled = rows.assign(ward=rows["ward"].replace("", None))
    with pytest.warns(UserWarning, match="values that training did not see"):
        exact, inputs = score(net, fitted, filled, tells=False), fitted.inputs(filled)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    got = session.run(None, fed(rows, fitted))
    if target == "cost":
        assert np.allclose(got[0], exact["predicted cost"], rtol=1e-5)
        return
    assert list(got[0]) == list(exact["predicted died"])
    assert np.allclose(got[1], exact.iloc[:, 1:], atol=1e-5)
    if outputs == 1:
        with torch.no_grad():
            second = torch.sigmoid(net(torch.from_numpy(inputs))).squeeze(1)
        assert np.allclose(exact["predicted died=yes"], second, atol=1e-6)
    assert Preprocessing.from_json(session.get_modelmeta().custom_metadata_map["preprocessing"])


def test_a_file_with_other_predictions_is_refused() -> None:
    _, net, fitted = exported("cost")
    content = as_onnx(net)
    with torch.no_grad():
        net.bias.add_(0.1)  # as if the conversion had lost it
    with pytest.raises(UndriftError, match="needs the predictions of the model itself"):
        completed(net, fitted, content)


def test_a_column_that_is_called_as_an_output_is_refused() -> None:
    fitted = read_table(
        frame()[["died", "cost"]].rename(columns={"cost": "prediction"}), target="died"
    )
    net = linear(1, 2)
    with pytest.raises(ValueError, match="no column called prediction or probabilities"):
        completed(net, fitted.preprocessing, as_onnx(net))

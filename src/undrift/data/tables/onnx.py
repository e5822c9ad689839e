"""A table's preprocessing as a part of an ONNX model: columns go in, predictions come out.

Numbers are doubles and categories are text, each as a column (rows, 1) under its name. A missing
number is NaN and a missing category is empty text; they become what training filled in, or else NaN
and none of the categories. Outputs are `prediction` and, for classes, `probabilities`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.check import require
from undrift.data.tables.preprocessing import CategoryColumn, NumberColumn, Preprocessing, Target
from undrift.data.tables.score import score
from undrift.errors import UndriftError, import_or_none, optional

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

PREDICTION, PROBABILITIES = "prediction", "probabilities"
OUTPUTS = (PREDICTION, PROBABILITIES)
LABELS = "ai.onnx.ml"  # the domain of operators on labels
ROWS = "rows"  # the name of the free size
KEY = "preprocessing"  # of the metadata


def is_exportable(preprocessing: Preprocessing) -> bool:
    """Return whether ONNX can express it; it cannot where a transformer of one's own is in it."""
    known = NumberColumn | CategoryColumn
    return all(isinstance(column, known) for column in preprocessing.columns)


def surround(proto: Any, preprocessing: Preprocessing) -> Any:
    """Return the ONNX model of a net, `input` to `output`, with the preprocessing around it."""
    onnx = optional("onnx", "An export to ONNX", "onnx")
    taken = [name for name in OUTPUTS if name in preprocessing.names]
    remedy = "rename the column"
    require(
        not taken, "An export to ONNX", f"no column called {' or '.join(OUTPUTS)}", taken, remedy
    )
    net = onnx.compose.add_prefix(proto, "net/")
    before, after = _Graph(onnx), _Graph(onnx)
    features = [before.column(column) for column in preprocessing.columns]
    before.add("Concat", features, net.graph.input[0].name, axis=1)
    last = net.graph.output[0]
    sides = [side.dim_value for side in last.type.tensor_type.shape.dim[1:]]
    after.outputs_of(preprocessing.target, last.name, one=sides in ([], [1]))
    graph = onnx.helper.make_graph(
        [*before.nodes, *net.graph.node, *after.nodes],
        "table",
        before.inputs,
        after.outputs,
        [*before.constants, *net.graph.initializer, *after.constants],
    )
    imports = {each.domain: each.version for each in net.opset_import} | {LABELS: 3}
    whole = onnx.helper.make_model(
        graph,
        ir_version=net.ir_version,
        opset_imports=[onnx.helper.make_opsetid(*each) for each in imports.items()],
        functions=net.functions,
    )
    onnx.helper.set_model_props(whole, {KEY: preprocessing.to_json()})
    onnx.checker.check_model(whole, full_check=True)
    return whole


def completed(model: nn.Module, preprocessing: Preprocessing, net: bytes) -> bytes:
    """Return the content of an ONNX file of a net with the preprocessing around it.

    Where onnxruntime is installed, its predictions for a few rows must be those of `score`.
    """
    onnx = optional("onnx", "An export to ONNX", "onnx")
    content: bytes = surround(onnx.load_from_string(net), preprocessing).SerializeToString()
    runtime = import_or_none("onnxruntime")
    if runtime is None:
        return content
    rows = example_rows(preprocessing, 8)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (got, *shares) = session.run(None, fed(rows, preprocessing))
    exact = score(model, preprocessing, rows, tells=False)
    numbers, expected = (shares[0], exact.iloc[:, 1:]) if shares else (got, exact.iloc[:, 0])
    if not np.allclose(numbers, expected.to_numpy(np.float64), 1e-3, 1e-3):
        raise UndriftError(
            "An export to ONNX needs the predictions of the model itself, got others by "
            "onnxruntime; nothing was written."
        )
    return content


def fed(frame: pd.DataFrame, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the rows as such a model takes them: a column by each name."""
    columns = {}
    for column in preprocessing.columns:
        (name,) = column.names
        cells = frame[name]
        if isinstance(column, NumberColumn):
            columns[name] = cells.to_numpy(dtype=np.float64)[:, None]
        else:
            columns[name] = cells.fillna("").astype(str).to_numpy(dtype=object)[:, None]
    return columns


def example_rows(preprocessing: Preprocessing, rows: int) -> pd.DataFrame:
    """Return rows such as training had, the last of them with missing cells where it may."""
    import pandas as pd

    rng, cells = np.random.default_rng(0), dict[str, Any]()
    for column in preprocessing.columns:
        if isinstance(column, NumberColumn):
            drawn = rng.normal(column.mean, column.scale, rows)
            cells[column.name] = drawn if column.fill is None else [*drawn[1:], np.nan]
        elif isinstance(column, CategoryColumn):
            words = rng.choice(np.array(column.categories, dtype=object), rows)
            cells[column.name] = words if column.fill is None else [*words[1:], None]
    return pd.DataFrame(cells)


class _Graph:
    """Collects nodes, constants, inputs and outputs of a graph."""

    def __init__(self, onnx: Any) -> None:
        self._make, self._types = onnx.helper, onnx.TensorProto
        self._from_array = onnx.numpy_helper.from_array
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        self.nodes.append(self._make.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(self._from_array(np.asarray(value), name))
        return name

    def column(self, column: Any) -> str:
        """Add a column's input and what it becomes; return the name of its features."""
        own = f"features/{column.name}"
        numeric = isinstance(column, NumberColumn)
        kind = self._types.DOUBLE if numeric else self._types.STRING
        self.inputs.append(self._make.make_tensor_value_info(column.name, kind, [ROWS, 1]))
        return self._number(column, own) if numeric else self._category(column, own)

    def _number(self, column: NumberColumn, own: str) -> str:
        values = column.name
        if column.fill is not None:
            missing = self.add("IsNaN", [values], f"{own}/missing")
            fill = self.constant(f"{own}/fill", np.float64(column.fill))
            values = self.add("Where", [missing, fill, values], f"{own}/filled")
        mean = self.constant(f"{own}/mean", np.float64(column.mean))
        scale = self.constant(f"{own}/scale", np.float64(column.scale))
        centred = self.add("Sub", [values, mean], f"{own}/centred")
        scaled = self.add("Div", [centred, scale], f"{own}/scaled")
        return self.add("Cast", [scaled], own, to=self._types.FLOAT)

    def _category(self, column: CategoryColumn, own: str) -> str:
        codes = {word: i for i, word in enumerate(column.categories)}
        if column.fill is not None:
            codes.setdefault("", codes[column.fill])
        code = self.add(
            "LabelEncoder",
            [column.name],
            f"{own}/code",
            domain=LABELS,
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=-1,
        )
        width = len(column.categories)
        flat = self.add("Reshape", [code, self.constant(f"{own}/flat", np.array([-1]))], f"{own}/1")
        return self.add(
            "OneHotEncoder", [flat], own, domain=LABELS, cats_int64s=list(range(width)), zeros=1
        )

    def outputs_of(self, target: Target, outputs: str, *, one: bool) -> None:
        """Add what the outputs of the net become: numbers, or classes and their probabilities.

        A net with `one` output for two classes gives the logit of the second.
        """
        info, types = self._make.make_tensor_value_info, self._types
        if not target.classes:
            flat = self.constant("target/flat", np.array([-1]))
            rows = self.add("Reshape", [outputs, flat], "target/rows")
            exact = self.add("Cast", [rows], "target/exact", to=types.DOUBLE)
            scale = self.constant("target/scale", np.float64(target.scale))
            mean = self.constant("target/mean", np.float64(target.mean))
            scaled = self.add("Mul", [exact, scale], "target/scaled")
            self.add("Add", [scaled, mean], PREDICTION)
            self.outputs.append(info(PREDICTION, types.DOUBLE, [ROWS]))
            return
        if one and len(target.classes) == 2:
            column = self.constant("target/column", np.array([-1, 1]))
            second = self.add("Reshape", [outputs, column], "target/second")
            first = self.add("Sub", [second, second], "target/first")
            outputs = self.add("Concat", [first, second], "target/logits", axis=1)
        shares = self.add("Softmax", [outputs], PROBABILITIES, axis=1)
        best = self.add("ArgMax", [shares], "target/best", axis=1, keepdims=0)
        count = len(target.classes)
        self.add(
            "LabelEncoder",
            [best],
            PREDICTION,
            domain=LABELS,
            keys_int64s=list(range(count)),
            values_strings=list(target.classes),
        )
        self.outputs.append(info(PREDICTION, types.STRING, [ROWS]))
        self.outputs.append(info(PROBABILITIES, types.FLOAT, [ROWS, count]))

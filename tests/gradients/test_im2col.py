"""Narrow convolutions and pooling, spelt otherwise, are the same functions with the same slopes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from undrift.gradients.im2col import DECOMPOSITIONS

ATEN = torch.ops.aten


def images(*shape: int, ties: bool = False) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return drawn.round() if ties else drawn


def traced(function, *arguments):
    """The graph of a function with its operations replaced, and the operations in it."""
    graph = make_fx(function, decomposition_table=dict(DECOMPOSITIONS))(*arguments)
    return graph, {node.target for node in graph.graph.nodes}


def value_and_slopes(function, *arguments):
    return torch.func.grad_and_value(function, argnums=tuple(range(len(arguments))))(*arguments)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)], ids=["valid", "padded"])
@pytest.mark.parametrize("kernel", [(5, 5), (3, 2), (1, 1)], ids=["5x5", "3x2", "1x1"])
@pytest.mark.parametrize("samples", [1, 6])
def test_a_convolution_and_all_of_its_slopes(samples, kernel, padding, bias) -> None:
    x, w = images(samples, 3, 8, 9), images(4, 3, *kernel)
    given = (x, w, images(4)) if bias else (x, w)

    def f(x, w, b=None):
        return F.conv2d(x, w, b, padding=padding).sin().sum()

    graph, operations = traced(lambda *g: value_and_slopes(f, *g), *given)
    assert not operations & {ATEN.convolution.default, ATEN.convolution_backward.default}
    (slopes, value), (expected_slopes, expected) = graph(*given), value_and_slopes(f, *given)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    for slope, of in zip(slopes, expected_slopes, strict=True):
        torch.testing.assert_close(slope, of, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"dilation": 2}, {"groups": 3}],
    ids=["stride", "dilation", "groups"],
)
def test_other_convolutions_are_left_as_they_are(options) -> None:
    x, w = images(2, 3, 9, 9), images(6, 3 // options.get("groups", 1), 3, 3)
    _, operations = traced(lambda x, w: F.conv2d(x, w, **options), x, w)
    assert ATEN.convolution.default in operations


def test_wide_convolutions_are_left_as_they_are() -> None:
    _, operations = traced(F.conv2d, images(2, 17, 4, 4), images(2, 17, 3, 3))
    assert ATEN.convolution.default in operations


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "distinct"])
@pytest.mark.parametrize("size", [(8, 8), (9, 11)], ids=["even", "remainder"])
@pytest.mark.parametrize("kernel", [2, 3, (2, 3)], ids=["2", "3", "2x3"])
def test_pooling_picks_the_same_numbers(kernel, size, ties) -> None:
    x = images(4, 5, *size, ties=ties)
    weights = images(4, 5, *F.max_pool2d(x, kernel).shape[2:])

    def f(x):
        return (F.max_pool2d(x, kernel) * weights).sum()

    graph, operations = traced(lambda x: value_and_slopes(f, x), x)
    assert ATEN.max_pool2d_with_indices.default not in operations
    (slope,), value = graph(x)
    (expected_slope,), expected = value_and_slopes(f, x)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(slope, expected_slope)


def test_pooling_tells_the_same_places_and_passes_nan_on() -> None:
    x = images(2, 3, 6, 7, ties=True)
    x[0, 0, 1, 1] = x[1, 2, 4, 2] = float("nan")

    def f(x):
        return F.max_pool2d(x, 2, return_indices=True)

    graph, _ = traced(f, x)
    (best, places), (expected, expected_places) = graph(x), f(x)
    torch.testing.assert_close(best, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, expected_places)


@pytest.mark.parametrize(
    "options",
    [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}],
    ids=["overlap", "padding", "ceil", "dilation"],
)
def test_other_poolings_are_left_as_they_are(options) -> None:
    x = images(2, 3, 7, 7)
    graph, operations = traced(lambda x: F.max_pool2d(x, 2, **options), x)
    assert ATEN.max_pool2d_with_indices.default in operations
    assert torch.equal(graph(x), F.max_pool2d(x, 2, **options))


def test_a_whole_net_of_both() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 2 * 2, 3),
    ).double()  # fmt: skip
    x, y = images(5, 1, 12, 12), torch.tensor([0, 2, 1, 1, 0])
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters):
        return F.cross_entropy(torch.func.functional_call(net, parameters, (x,)), y)

    graph, _ = traced(torch.func.grad(loss), parameters)
    for name, slope in graph(parameters).items():
        expected = torch.func.grad(loss)(parameters)[name]
        torch.testing.assert_close(slope, expected, rtol=1e-10, atol=1e-12)

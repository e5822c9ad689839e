"""Models by name: the documents' parameters and layers, transcribed forward passes, errors."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from tests.support.runs import distance
from undrift import models
from undrift.engine.tuning.probe import inspect
from undrift.errors import UndriftError
from undrift.models.layout import Layout

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)
TEXTS = ("char-lstm", "text")


def conv(inputs: int, outputs: int, side: int, bias: bool = True) -> int:
    return outputs * (inputs * side * side + bias)


def dense(inputs: int, outputs: int) -> int:
    return outputs * (inputs + 1)


def on_meta(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """A model without memory, for shapes and counts."""
    with torch.device("meta"):
        return models.build(name, shape=shape, classes=classes, **options)


def counts(model: nn.Module) -> list[int]:
    """Parameters of each child that has some, in the order in which they are registered."""
    numbers = [sum(p.numel() for p in child.parameters()) for child in model.children()]
    return [number for number in numbers if number]


# name, shape, classes, options; parameters of each part; their sum as published or in the documents
COUNTS: dict[str, tuple[str, tuple[int, ...], int, dict[str, Any], list[int], int]] = {
    "logistic a9a": ("logistic", (123,), 2, {}, [dense(123, 2)], 248),
    "logistic fashion": ("logistic", MNIST, 10, {}, [dense(784, 10)], 7_850),
    "mlp": ("mlp", (64,), 10, {}, [dense(64, 32), dense(32, 10)], 2_410),
    "cnn2": ("cnn2", MNIST, 10, {}, [260, 5_020, 16_050, 510], 21_840),
    "cnn2 without dropout": (
        "cnn2", MNIST, 10, {"dropout": 0.0}, [260, 5_020, 16_050, 510], 21_840,
    ),
    "alexnet": (
        "alexnet", CIFAR, 10, {},
        [23_296, 307_392, 663_936, 884_992, 590_080, 526_336, 4_196_352, 20_490], 7_212_874,
    ),
    "alexnet mnist": (
        "alexnet", MNIST, 10, {},
        [conv(1, 64, 11), 307_392, 663_936, 884_992, 590_080, 526_336, 4_196_352, 20_490],
        7_212_874 - 2 * 64 * 11 * 11,
    ),
    "alexnet-wide": (
        "alexnet-wide", CIFAR, 10, {},
        [23_296, 307_392, 663_936, 884_992, 590_080,
         dense(256 * 2 * 2, 4096), dense(4096, 4096), dense(4096, 10)], 23_490_378,
    ),
    "vgg19": (
        "vgg19", CIFAR, 10, {},
        [38_720, 221_440, 2_065_408, 8_259_584, 9_439_232, 262_656, 262_656, 5_130], 20_554_826,
    ),
    "netfleet-cnn": ("netfleet-cnn", MNIST, 10, {}, [160, 2_320, dense(16 * 5 * 5, 10)], 6_490),
    "netfleet-cnn padded": (
        "netfleet-cnn", MNIST, 10, {"padding": 1}, [160, 2_320, dense(16 * 7 * 7, 10)], 10_330,
    ),
    "resnet18-gn imagenet": (  # torchvision's resnet18: layer by layer and in total
        "resnet18-gn", (3, 224, 224), 1000, {"stem": 7},
        [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 513_000], 11_689_512,
    ),
    "resnet18-gn cifar": (
        "resnet18-gn", CIFAR, 10, {},
        [conv(3, 64, 3, bias=False) + 128, 147_968, 525_568, 2_099_712, 8_393_728, 5_130],
        11_173_962,
    ),
    "resnet20": (
        "resnet20", CIFAR, 10, {},
        [
            432 + 32,
            6 * conv(16, 16, 3, bias=False) + 6 * 32,
            conv(16, 32, 3, bias=False) + 5 * conv(32, 32, 3, bias=False) + 6 * 64,
            conv(32, 64, 3, bias=False) + 5 * conv(64, 64, 3, bias=False) + 6 * 128,
            650,
        ],
        269_722,
    ),
    "resnet50-gn": (  # torchvision's resnet50
        "resnet50-gn", (3, 224, 224), 1000, {},
        [9_536, 215_808, 1_219_584, 7_098_368, 14_964_736, 2_049_000], 25_557_032,
    ),
    "femnist-cnn": (
        "femnist-cnn", MNIST, 62, {},
        [conv(1, 32, 5), conv(32, 64, 5), dense(64 * 7 * 7, 2048), dense(2048, 62)], 6_603_710,
    ),
    "celeba-cnn": (
        "celeba-cnn", (3, 84, 84), 2, {},
        [conv(3, 32, 3) + 64, *[conv(32, 32, 3) + 64] * 3, dense(32 * 6 * 6, 2)], 31_202,
    ),
    "char-lstm": (
        "char-lstm", (80,), 80, {},
        [80 * 8, 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2), dense(256, 80)],
        640 + 271_360 + 525_312 + 20_560 + 2 * 1024,  # LEAF's, and torch's second biases
    ),
    "text": (
        "text", (256,), 2, {},
        [
            20_000 * 64 + 256 * 64,
            *[4 * dense(64, 64) + dense(64, 256) + dense(256, 64) + 2 * 128] * 2,
            128,
            dense(64, 2),
        ],
        1_396_610,
    ),
}  # fmt: skip
OPTIONAL = {"distilbert", "huggingface"}


@pytest.mark.parametrize("case", COUNTS)
def test_parameters_are_the_documents(case: str) -> None:
    name, shape, classes, options, parts, total = COUNTS[case]
    model = on_meta(name, shape, classes, **options)
    assert counts(model) == parts
    assert sum(p.numel() for p in model.parameters()) == sum(parts) == total
    inputs = torch.zeros((2, *shape), device="meta", dtype=torch.long if name in TEXTS else None)
    assert model(inputs).shape == (2, classes)
    assert Layout.of(model).size == total, "no BatchNorm: the simulator takes it as it is"


def test_every_name_has_its_count() -> None:
    assert {case[0] for case in COUNTS.values()} == set(models.MODELS) - OPTIONAL


CONV, POOL, FLAT = ["Conv2d", "ReLU"], ["MaxPool2d"], ["Flatten"]
ALEXNET = (CONV + POOL) * 2 + CONV * 3
VGG = [layer for depth in (2, 2, 4, 4, 4) for layer in CONV * depth + POOL]
DENSE = ["Dropout", "Linear", "ReLU"]
ORDERS = {
    "cnn2": CONV + POOL + CONV + ["Dropout2d"] + POOL + FLAT
    + ["Linear", "ReLU", "Dropout", "Linear"],
    "alexnet": ALEXNET + POOL + FLAT + DENSE * 2 + ["Linear"],
    "alexnet-wide": ALEXNET + FLAT + DENSE * 2 + ["Linear"],
    "vgg19": VGG + FLAT + DENSE * 2 + ["Linear"],
    "netfleet-cnn": (CONV + POOL) * 2 + FLAT + ["Linear"],
    "femnist-cnn": (CONV + POOL) * 2 + FLAT + ["Linear", "ReLU", "Linear"],
    "celeba-cnn": ["Conv2d", "GroupNorm", "MaxPool2d", "ReLU"] * 4 + FLAT + ["Linear"],
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_layers_come_in_the_documents_order(name: str) -> None:
    model = on_meta(name, CIFAR, 10)
    leaves = [module for module in model.modules() if not list(module.children())]
    assert [type(leaf).__name__ for leaf in leaves] == ORDERS[name]
    assert all(leaf.p == 0.5 for leaf in leaves if isinstance(leaf, nn.Dropout | nn.Dropout2d))


@pytest.mark.parametrize("name", ["cnn2", "alexnet", "vgg19", "text"])
def test_without_dropout_nothing_is_drawn(name: str) -> None:
    shape = (6,) if name == "text" else CIFAR
    model = on_meta(name, shape, 3, dropout=0.0)
    assert not [m for m in model.modules() if isinstance(m, nn.Dropout | nn.Dropout2d)]
    assert Layout.of(model) == Layout.of(on_meta(name, shape, 3, dropout=0.3)), "the same names"


SIZES = {
    "cnn2": [(1, 16, 16), (3, 32, 32), (2, 17, 40)],
    "netfleet-cnn": [(1, 10, 10), (3, 33, 12)],
    "femnist-cnn": [(1, 4, 4), (3, 31, 30)],
    "celeba-cnn": [(3, 1, 1), (1, 28, 28), (3, 45, 83)],
    "alexnet": [(1, 8, 8), (3, 64, 64), (3, 33, 70)],
    "alexnet-wide": [(1, 8, 8), (3, 64, 48)],
    "vgg19": [(1, 8, 8), (3, 64, 64), (3, 33, 70)],
    "resnet18-gn": [(1, 8, 8), (3, 64, 64)],
    "resnet20": [(1, 8, 8), (3, 33, 30), (1, 28, 28)],
    "resnet50-gn": [(1, 28, 28), (3, 64, 64)],
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name, shapes in SIZES.items() for shape in shapes],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
def test_other_image_sizes(name: str, shape: tuple[int, ...]) -> None:
    assert on_meta(name, shape, 7)(torch.zeros(2, *shape, device="meta")).shape == (2, 7)


def real(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return models.build(name, shape=shape, classes=classes, **options).eval()


def test_cnn2_as_written() -> None:
    model = real("cnn2", MNIST, 10)
    p, x = dict(model.named_parameters()), torch.randn(3, *MNIST)
    hidden = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.0.weight"], p["conv1.0.bias"])), 2)
    hidden = F.max_pool2d(F.relu(F.conv2d(hidden, p["conv2.0.weight"], p["conv2.0.bias"])), 2)
    hidden = F.relu(F.linear(hidden.reshape(3, 320), p["dense.1.weight"], p["dense.1.bias"]))
    expected = F.linear(hidden, p["classifier.weight"], p["classifier.bias"])
    assert torch.allclose(model(x), expected, atol=1e-6)


def test_alexnet_as_written() -> None:
    """Pooling that rounds up is plain pooling on 32x32."""
    model = real("alexnet", CIFAR, 10)
    x = torch.randn(2, *CIFAR)
    w = [p.detach() for p in model.parameters()]
    hidden = F.max_pool2d(F.relu(F.conv2d(x, w[0], w[1], stride=4, padding=5)), 2)
    assert hidden.shape[1:] == (64, 4, 4)
    hidden = F.max_pool2d(F.relu(F.conv2d(hidden, w[2], w[3], padding=2)), 2)
    for i in (4, 6, 8):
        hidden = F.relu(F.conv2d(hidden, w[i], w[i + 1], padding=1))
    hidden = F.max_pool2d(hidden, 2).reshape(2, 256)
    for i in (10, 12):
        hidden = F.relu(F.linear(hidden, w[i], w[i + 1]))
    assert torch.allclose(model(x), F.linear(hidden, w[14], w[15]), atol=1e-6)


def test_resnet20_as_written() -> None:
    """Option A, naively: every other pixel, and new channels of zeros on both sides."""
    model = real("resnet20", CIFAR, 10)
    weights = iter([p.detach() for p in model.parameters()])
    x = torch.randn(2, *CIFAR)

    def convolved(inputs: Tensor, stride: int = 1) -> Tensor:
        kernel, scale, shift = next(weights), next(weights), next(weights)
        return F.group_norm(F.conv2d(inputs, kernel, stride=stride, padding=1), 2, scale, shift)

    hidden = F.relu(convolved(x))
    for width in (16, 32, 64):
        for number in range(3):
            stride = 2 if width > 16 and number == 0 else 1
            shortcut = hidden
            if stride == 2:
                shortcut = torch.zeros(2, width, hidden.shape[2] // 2, hidden.shape[3] // 2)
                for channel in range(width // 2):
                    shortcut[:, width // 4 + channel] = hidden[:, channel, ::2, ::2]
            hidden = F.relu(convolved(F.relu(convolved(hidden, stride))) + shortcut)
    logits = F.linear(hidden.mean((2, 3)), next(weights), next(weights))
    assert next(weights, None) is None
    assert hidden.shape == (2, 64, 8, 8)
    assert torch.allclose(model(x), logits, atol=1e-5)


def test_the_bottleneck_as_written() -> None:
    """The stride is that of the 3x3 convolution, as in torchvision."""
    torch.manual_seed(0)
    block = models.resnet.Bottleneck(16, 32, 2, 2)
    w, x = [p.detach() for p in block.parameters()], torch.randn(2, 16, 6, 6)
    hidden = F.relu(F.group_norm(F.conv2d(x, w[0]), 2, w[1], w[2]))
    hidden = F.relu(F.group_norm(F.conv2d(hidden, w[3], stride=2, padding=1), 2, w[4], w[5]))
    hidden = F.group_norm(F.conv2d(hidden, w[6]), 2, w[7], w[8])
    shortcut = F.group_norm(F.conv2d(x, w[9], stride=2), 2, w[10], w[11])
    assert torch.allclose(block(x), F.relu(hidden + shortcut), atol=1e-6)


def test_char_lstm_as_written() -> None:
    model = real("char-lstm", (5,), 7, hidden=6, vocabulary=9)
    tokens = torch.randint(9, (4, 5))
    sequence = dict(model.named_parameters())["embedding.weight"][tokens]
    for layer in range(2):
        w = [p.detach() for name, p in model.named_parameters() if name.endswith(f"_l{layer}")]
        h, c, outputs = torch.zeros(4, 6), torch.zeros(4, 6), []
        for step in range(5):
            gates = sequence[:, step] @ w[0].T + w[2] + h @ w[1].T + w[3]
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        sequence = torch.stack(outputs, 1)
    head = model.classifier
    assert torch.allclose(
        model(tokens), F.linear(sequence[:, -1], head.weight, head.bias), atol=1e-6
    )


def test_the_text_model_is_torchs_encoder_on_each_text_alone() -> None:
    """Against nn.TransformerEncoderLayer with the same weights, without any padding."""
    width, heads = 8, 2
    model = real("text", (6,), 3, vocabulary=20, width=width, heads=heads, layers=2)
    texts = [[3, 7, 7, 19], [1, 2, 3, 4, 5, 6], [11]]
    padded = torch.tensor([text + [0] * (6 - len(text)) for text in texts])
    logits = model(padded)
    embedding = model.embedding
    for i, text in enumerate(texts):
        words = embedding.tokens.weight[text] + embedding.positions.weight[: len(text)]
        hidden = words.detach().unsqueeze(0)
        for own in (model.layer1, model.layer2):
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
            ).eval()
            attention = own.attention
            pairs = {
                "self_attn.in_proj_weight": attention.inputs.weight,
                "self_attn.in_proj_bias": attention.inputs.bias,
                "self_attn.out_proj.weight": attention.outputs.weight,
                "self_attn.out_proj.bias": attention.outputs.bias,
                "linear1.weight": own.dense[0].weight,
                "linear1.bias": own.dense[0].bias,
                "linear2.weight": own.dense[2].weight,
                "linear2.bias": own.dense[2].bias,
                "norm1.weight": own.norm1.weight,
                "norm1.bias": own.norm1.bias,
                "norm2.weight": own.norm2.weight,
                "norm2.bias": own.norm2.bias,
            }
            layer.load_state_dict(pairs)
            hidden = layer(hidden)
        expected = model.classifier(model.norm(hidden).mean(1))[0]
        assert torch.allclose(logits[i], expected, atol=1e-5)


def test_embeddings_start_small_enough_for_sgd() -> None:
    model = real("text", (256,), 2)
    for table in (model.embedding.tokens, model.embedding.positions):
        assert float(table.weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def test_an_empty_text_has_finite_logits_and_gradients() -> None:
    model = real("text", (4,), 3, vocabulary=20, width=8)
    logits = model(torch.zeros(2, 4, dtype=torch.long))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_tokens_may_be_stored_as_bytes() -> None:
    tokens = torch.randint(1, 20, (3, 4))
    for name in TEXTS:
        model = real(name, (4,), 3, vocabulary=20)
        assert torch.equal(model(tokens), model(tokens.to(torch.uint8)))


@pytest.mark.parametrize("name", ["resnet18-gn", "resnet20", "resnet50-gn", "celeba-cnn"])
def test_group_norms_have_two_groups_unless_told(name: str) -> None:
    for options, groups in (({}, 2), ({"groups": 4}, 4)):
        model = on_meta(name, CIFAR, 10, **options)
        norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
        assert len(norms) >= 4
        assert {norm.num_groups for norm in norms} == {groups}
        assert all(norm.affine for norm in norms)


SMALL: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "logistic": ("logistic", (9,), {}),
    "mlp": ("mlp", (9,), {}),
    "cnn2": ("cnn2", (1, 16, 16), {}),
    "cnn2-w1": ("cnn2", (1, 16, 16), {"dropout": 0.0}),
    "netfleet-cnn": ("netfleet-cnn", (1, 12, 12), {}),
    "celeba-cnn": ("celeba-cnn", (3, 20, 20), {}),
    "resnet20": ("resnet20", (3, 8, 8), {}),
    "text": ("text", (7,), {"vocabulary": 30, "width": 16}),
}


def clients(name: str, shape: tuple[int, ...], classes: int = 3) -> ud.Clients:
    """Two clients of unequal size with random data."""
    generator = torch.Generator().manual_seed(1)
    pairs = []
    for size in (3, 5):
        inputs = torch.randn(size, *shape, generator=generator)
        if name in TEXTS:
            inputs = torch.randint(30, (size, *shape), generator=generator)
        pairs.append((inputs, torch.randint(classes, (size,), generator=generator)))
    return ud.Clients(pairs)


def trained(
    name: str,
    shape: tuple[int, ...],
    algorithm: Any = None,
    mode: Any = "auto",
    data: Any = None,
    **options: Any,
) -> ud.Run:
    run = ud.simulate(
        algorithm or ud.FedAvg(lr=0.1),
        real(name, shape, 3, **options),
        data or clients(name, shape),
        loss=F.cross_entropy,
        work=ud.Steps(2),
        batch_size=2,
        rounds=1,
        mode=mode,
    )
    (record,) = list(run)
    assert math.isfinite(record.loss)
    return run


@pytest.mark.parametrize("case", SMALL)
def test_stacked_is_loop(case: str) -> None:
    """With dropout: every mask is a function of its key, none is drawn inside a fused kernel."""
    name, shape, options = SMALL[case]
    loop, stacked = (trained(name, shape, mode=mode, **options) for mode in ("loop", "stacked"))
    assert distance(loop.x, stacked.x) < 2e-6
    assert distance(loop.x, Layout.of(loop.model).gather(real(name, shape, 3, **options))) > 1e-4


@pytest.mark.parametrize("case", SMALL)
def test_small_models_are_stacked_by_themselves(case: str) -> None:
    name, shape, options = SMALL[case]
    run = trained(name, shape, **options)
    if name == "resnet20":
        assert (run.mode, run.why) == ("loop", "269267 parameters are too many to stack")
    else:
        assert (run.mode, run.why) == ("stacked", "a small model")


def test_lstms_fall_back_to_the_loop_by_themselves() -> None:
    small = trained("char-lstm", (6,), hidden=8, vocabulary=30)
    assert small.mode == "loop"
    assert re.match(r"vmap refuses it \(.+\)", small.why)
    leaf = trained("char-lstm", (6,), vocabulary=30)
    assert leaf.mode == "loop"
    assert leaf.why.endswith("parameters are too many to stack")


@pytest.mark.parametrize("name", ["alexnet", "femnist-cnn"])
def test_larger_models_run_in_the_loop(name: str) -> None:
    assert trained(name, MNIST).mode == "loop"


@pytest.mark.long
@pytest.mark.parametrize("name", ["alexnet-wide", "vgg19", "resnet18-gn", "resnet50-gn"])
def test_the_largest_models_run_in_the_loop(name: str) -> None:
    assert trained(name, CIFAR).mode == "loop"


@pytest.mark.parametrize(
    ("name", "options", "drawn"),
    [
        ("cnn2", {}, "dropout"),
        ("cnn2", {"dropout": 0.0}, "none"),
        ("text", {"vocabulary": 30, "width": 16}, "dropout"),
        ("text", {"vocabulary": 30, "width": 16, "dropout": 0.0}, "none"),
        ("char-lstm", {"vocabulary": 30, "hidden": 4}, "none"),
    ],
    ids=["cnn2", "cnn2-without", "text", "text-without", "char-lstm"],
)
def test_every_dropout_is_seen(name: str, options: dict[str, Any], drawn: str) -> None:
    shape = (7,) if name in TEXTS else (1, 16, 16)
    model = real(name, shape, 3, **options).train()
    assert inspect(model, F.cross_entropy, clients(name, shape))[0].randomness == drawn


SEEDED = {**SMALL, "char-lstm": ("char-lstm", (5,), {})}


@pytest.mark.parametrize("case", SEEDED)
def test_weights_depend_on_the_seed_alone(case: str) -> None:
    name, shape, options = SEEDED[case]
    one, same = (real(name, shape, 3, **options) for _ in range(2))
    torch.manual_seed(1)
    other = models.build(name, shape=shape, classes=3, **options)
    gather = Layout.of(one).gather
    assert torch.equal(gather(one), gather(same))
    assert not torch.equal(gather(one), gather(other))


BLOCKS = {
    "mlp": (32, 2),
    "cnn2": (50, 4),
    "alexnet": (2048, 8),
    "alexnet-wide": (4096, 8),
    "vgg19": (512, 8),
    "netfleet-cnn": (16 * 6 * 6, 3),
    "femnist-cnn": (2048, 4),
    "celeba-cnn": (32 * 2 * 2, 5),
    "resnet18-gn": (512, 6),
    "resnet20": (64, 5),
    "resnet50-gn": (2048, 6),
    "char-lstm": (256, 3),
    "text": (64, 4),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_moon_and_fedmlb_find_what_they_ask_for(name: str) -> None:
    """Features of this width in front of the classifier, and this many levels."""
    features, levels = BLOCKS[name]
    model = on_meta(name, (8,) if name in TEXTS else CIFAR, 3)
    ud.MOON(lr=0.1).check(model)
    ud.FedMLB(lr=0.1).check(model)
    head = models.classifier(model)
    assert isinstance(head, nn.Linear)
    assert head.in_features == features
    found = Layout.of(model).levels
    assert list(found) == sorted(found), "parameters in the order in which they are used"
    assert set(found) == set(range(levels))


@pytest.mark.parametrize("case", ["cnn2", "celeba-cnn", "resnet20", "text"])
def test_moon_and_fedmlb_run(case: str) -> None:
    name, shape, options = SMALL[case]
    plain = trained(name, shape, mode="loop", **options)
    for algorithm in (ud.MOON(lr=0.1), ud.FedMLB(lr=0.1)):
        loop = trained(name, shape, algorithm, "loop", **options)
        assert distance(loop.x, plain.x) > 1e-6
        if name in ("cnn2", "text"):
            stacked = trained(name, shape, algorithm, "stacked", **options)
            assert distance(loop.x, stacked.x) < 2e-5


def build(name: str, *shape: int, classes: int = 3, **options: Any) -> Callable[[], object]:
    return lambda: models.build(name, shape=shape, classes=classes, **options)


def run_text_on_features() -> object:
    return trained("text", (9,), data=clients("mlp", (9,)))


IMAGES = "needs images as (channels, height, width), got"
WITHOUT = "use a model without convolutions such as mlp, or reshape them."
ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    "unknown name": (build("cnn3", 1, 28, 28), "got 'cnn3'; the nearest is 'cnn2'."),
    "no class": (
        build("mlp", 4, classes=0), "build needs classes >= 1, a whole number, got 0.",
    ),
    "empty shape": (build("mlp"), "build needs shape as whole numbers >= 1, got ()."),
    "zero side": (
        build("cnn2", 1, 0, 28), "build needs shape as whole numbers >= 1, got (1, 0, 28).",
    ),
    "digits": (
        build("cnn2", 64),
        f"cnn2 {IMAGES} (64,); {WITHOUT}",
    ),
    "no channels": (
        build("resnet20", 28, 28),
        f"resnet20 {IMAGES} (28, 28); {WITHOUT}",
    ),
    "no square": (build("vgg19", 123), f"vgg19 {IMAGES} (123,); {WITHOUT}"),
    "features for alexnet": (build("alexnet", 123), f"alexnet {IMAGES} (123,)"),
    "features for alexnet-wide": (build("alexnet-wide", 123), f"alexnet-wide {IMAGES} (123,)"),
    "features for netfleet-cnn": (build("netfleet-cnn", 123), f"netfleet-cnn {IMAGES} (123,)"),
    "features for femnist-cnn": (build("femnist-cnn", 123), f"femnist-cnn {IMAGES} (123,)"),
    "features for celeba-cnn": (build("celeba-cnn", 123), f"celeba-cnn {IMAGES} (123,)"),
    "features for resnet18-gn": (build("resnet18-gn", 123), f"resnet18-gn {IMAGES} (123,)"),
    "features for resnet50-gn": (build("resnet50-gn", 123), f"resnet50-gn {IMAGES} (123,)"),
    "too small": (
        build("cnn2", 1, 8, 8),
        "cnn2 needs images of at least 16x16, got 8x8; "
        "enlarge or pad them, or use a smaller model such as mlp.",
    ),
    "one side too small": (build("cnn2", 1, 28, 15), "at least 16x16, got 28x15;"),
    "too small for netfleet-cnn": (build("netfleet-cnn", 1, 9, 9), "at least 10x10, got 9x9;"),
    "too small for femnist-cnn": (build("femnist-cnn", 1, 3, 9), "at least 4x4, got 3x9;"),
    "images for char-lstm": (
        build("char-lstm", 1, 28, 28),
        "char-lstm needs texts as (length,), got (1, 28, 28); "
        "it is a model of token ids; for images use one such as cnn2.",
    ),
    "images for text": (
        build("text", 1, 28, 28), "text needs texts as (length,), got (1, 28, 28);",
    ),
    "features for text": (
        run_text_on_features, "text needs token ids as whole numbers, got torch.float32",
    ),
    "mistyped option": (
        build("cnn2", 1, 28, 28, dropuot=0.1),
        "cnn2 needs no option but dropout, got 'dropuot'; the nearest is 'dropout'.",
    ),
    "unknown option": (
        build("resnet18-gn", 3, 32, 32, xyz=1),
        "resnet18-gn needs no option but stem, groups, projection, got 'xyz'; leave it out.",
    ),
    "no options": (
        build("logistic", 64, hidden=3), "logistic needs no options, got 'hidden'; leave it out.",
    ),
    "hidden": (build("mlp", 64, hidden=0), "mlp needs hidden >= 1, a whole number, got 0."),
    "dropout": (build("cnn2", 1, 28, 28, dropout=1.0), "cnn2 needs dropout in [0, 1), got 1.0."),
    "dropout of alexnet": (
        build("alexnet", 3, 32, 32, dropout="x"), "alexnet needs dropout in [0, 1), got 'x'.",
    ),
    "padding": (
        build("netfleet-cnn", 1, 28, 28, padding=-1),
        "netfleet-cnn needs padding >= 0, a whole number, got -1.",
    ),
    "stem": (build("resnet18-gn", 3, 32, 32, stem=5), "resnet18-gn needs stem 3 or 7, got 5."),
    "groups": (
        build("resnet20", 3, 32, 32, groups=3),
        "resnet20 needs groups that divide its 16 channels, got 3; 2 is usual.",
    ),
    "no groups": (
        build("celeba-cnn", 3, 84, 84, groups=0),
        "celeba-cnn needs groups >= 1, a whole number, got 0.",
    ),
    "projection": (
        build("resnet20", 3, 32, 32, projection=0),
        "resnet20 needs projection >= 1, a whole number, got 0.",
    ),
    "layers": (build("text", 8, layers=0), "text needs layers >= 1, a whole number, got 0."),
    "heads": (build("text", 8, heads=3), "text needs heads that divide its width 64, got 3."),
    "vocabulary": (
        build("char-lstm", 8, vocabulary=2.5),
        "char-lstm needs vocabulary >= 1, a whole number, got 2.5.",
    ),
    "no path": (
        build("huggingface", 8),
        "huggingface needs path, got none; name a folder or a model in the local cache, "
        "such as 'distilbert/distilbert-base-uncased'.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_bad_arguments_are_told_in_one_sentence(case: str) -> None:
    call, sentence = ERRORS[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()


def test_options_of_each_model_are_known() -> None:
    assert models.option_names("cnn2") == ["dropout"]
    assert models.option_names("logistic") == []
    assert models.option_names("resnet18-gn") == ["stem", "groups", "projection"]
    assert models.option_names("huggingface") == ["path"]


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UndriftError, match=re.escape("pip install 'undrift[transformers]'.")):
        models.build("distilbert", shape=(8,), classes=2)


@pytest.fixture
def tiny_distilbert(tmp_path: Path) -> Path:
    """A folder with a small random DistilBERT for two classes."""
    transformers = pytest.importorskip("transformers", reason="needs undrift[transformers]")
    settings = {"vocab_size": 30, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2}
    config = transformers.DistilBertConfig(**settings, max_position_embeddings=12)
    torch.manual_seed(5)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def texts(count: int, seed: int = 0) -> Tensor:
    """Token ids with padding from the fifth to the eighth token."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 30, (count, 8), generator=generator)
    tokens[:, 5:] = 0
    return tokens


def test_distilbert_from_a_folder(tiny_distilbert: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs undrift[transformers]")
    model = models.build("distilbert", shape=(8,), classes=2, path=tiny_distilbert)
    assert model.training
    plain = transformers.DistilBertForSequenceClassification.from_pretrained(tiny_distilbert)
    tokens, logits = texts(4), model.eval()(texts(4))
    unpadded = plain.eval()(input_ids=tokens[:, :5]).logits
    assert logits.shape == (4, 2)
    assert torch.allclose(logits, unpadded, atol=1e-6), "padding is masked"


def test_distilbert_trains_in_the_simulator(tiny_distilbert: Path) -> None:
    model = models.from_pretrained(tiny_distilbert, classes=2)
    pairs = [(texts(n, n), torch.arange(n) % 2) for n in (3, 5)]
    data = ud.Clients(pairs)  # type: ignore[arg-type]
    assert inspect(model, F.cross_entropy, data)[0].randomness == "dropout", "all masks are keyed"
    work = {"loss": F.cross_entropy, "work": ud.Steps(2), "rounds": 1, "batch_size": 2}
    ends = []
    for algorithm in (ud.FedAvg(lr=0.1), ud.FedAvg(lr=0.1), ud.MOON(lr=0.1)):
        run = ud.simulate(algorithm, model, data, **work)  # type: ignore[arg-type]
        (record,) = list(run)
        assert math.isfinite(record.loss)
        assert run.mode == "loop"
        assert run.why
        ends.append(run.x)
    assert torch.equal(ends[0], ends[1])
    assert distance(ends[0], ends[2]) > 1e-7
    assert distance(ends[0], Layout.of(model).gather(model)) > 1e-5
    with pytest.raises(ValueError, match="FedMLB needs a model of two or more trained blocks"):
        ud.simulate(ud.FedMLB(lr=0.1), model, data, **work)  # type: ignore[arg-type]


def test_another_number_of_classes_gets_a_new_classifier(tiny_distilbert: Path) -> None:
    built = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        built.append(models.from_pretrained(str(tiny_distilbert), classes=5))
    heads = [models.classifier(model).weight for model in built]  # type: ignore[union-attr]
    assert heads[0].shape == (5, 16)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    bodies = [model.network.distilbert.state_dict() for model in built]  # type: ignore[union-attr, operator]
    assert all(torch.equal(bodies[0][name], bodies[2][name]) for name in bodies[0])


def test_hugging_face_errors_are_one_sentence(tiny_distilbert: Path, tmp_path: Path) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (
            lambda: models.from_pretrained("nowhere/to-be-found", classes=2),
            "from_pretrained needs a folder or the name of a model in the local cache, got "
            "'nowhere/to-be-found'; fetch it once with `hf download nowhere/to-be-found`, "
            "or pass local_files_only=False.",
        ),
        (
            lambda: models.from_pretrained(tmp_path, classes=2),
            "from_pretrained needs a folder that save_pretrained wrote",
        ),
        (
            lambda: models.from_pretrained(tiny_distilbert, classes=2, wrong=1),
            "check config.json, the weights and the options.",
        ),
        (
            lambda: models.from_pretrained(tiny_distilbert, classes=2, pad_token_id=None),
            "pass pad_token_id=0 or whatever fills your texts.",
        ),
        (
            build("huggingface", 13, path=tiny_distilbert),
            "huggingface needs texts of at most 12 tokens, got 13; cut them.",
        ),
        (
            build("huggingface", 1, 28, 28, path=tiny_distilbert),
            "huggingface needs texts as (length,), got (1, 28, 28);",
        ),
        (
            lambda: models.from_pretrained(tiny_distilbert, classes=2)(torch.zeros(1, 8)),
            "token ids as whole numbers, got torch.float32",
        ),
    ]
    for call, sentence in calls:
        with pytest.raises((ValueError, UndriftError), match=re.escape(sentence)) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_of_the_two_layer_cnn_is_the_same_in_every_mode(dropout: float) -> None:
    """Channels dropped after a convolution and features after a dense layer, in float64."""
    torch.manual_seed(0)
    model = ud.models.build("cnn2", shape=(1, 16, 16), classes=3, dropout=dropout).double()
    pairs = [(torch.randn(n, 1, 16, 16).double(), torch.arange(n) % 3) for n in (5, 7)]
    ends = []
    for mode in ("loop", "stacked"):
        run = ud.simulate(
            ud.FedAvg(lr=0.1), model, ud.Clients(pairs), loss=nn.functional.cross_entropy,
            work=ud.Steps([3, 5]), batch_size=4, rounds=2, mode=mode,  # type: ignore[arg-type]
        )  # fmt: skip
        for _ in run:
            pass
        ends.append(run.x)
    assert torch.allclose(*ends, atol=1e-12)


def test_models_by_name() -> None:
    assert (
        sum(p.numel() for p in ud.models.build("logistic", shape=(64,), classes=10).parameters())
        == 650
    )
    assert ud.models.build("mlp", shape=(8, 8), classes=10)(torch.zeros(2, 8, 8)).shape == (2, 10)

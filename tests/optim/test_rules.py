"""Local rules against torch.optim, and their names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.optim import rules


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ud.SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (ud.Momentum(0.8), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8)),
        (
            ud.Momentum(0.8, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True),
        ),
        (ud.Adam(0.8, 0.9, 1e-6), lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.9), 1e-6)),
        (
            ud.AdamW(0.8, 0.9, 1e-6, decay=0.3),
            lambda p: torch.optim.AdamW(p, 0.1, (0.8, 0.9), 1e-6, weight_decay=0.3),
        ),
    ],
    ids=["sgd", "momentum", "nesterov", "adam", "adamw"],
)
def test_rules_equal_torch(ours: rules.Rule, theirs: object) -> None:
    y = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    p = nn.Parameter(y.clone())
    optimiser = theirs([p])  # type: ignore[operator]
    state = ours.init(y)
    for _ in range(7):
        p.grad = p.detach() ** 3 - 1
        d, state = ours(y**3 - 1, state, y)
        y = y - 0.1 * d
        optimiser.step()
        assert torch.allclose(y, p.detach(), rtol=1e-12)


def test_rules_have_names() -> None:
    assert rules.parse("momentum:0.8") == ud.Momentum(0.8)
    momenta = (ud.Momentum(0.8), ud.Momentum(0.8, nesterov=True))
    for known in (ud.SGD(), *momenta, ud.Adam(0.8), ud.AdamW(0.8, decay=0.1)):
        assert rules.parse(str(known)) == known
    assert rules.parse("adam:0.8:0.9") == ud.Adam(0.8, 0.9)
    with pytest.raises(ValueError, match="nearest is 'momentum'"):
        rules.parse("momentun")
    with pytest.raises(ValueError, match="form such as"):
        rules.parse("momentum:a")
    with pytest.raises(ValueError, match="AdamW needs decay >= 0, got -1"):
        ud.AdamW(decay=-1)

"""Five methods fit one line to clients with lines of their own, as in Figure 4.1 of the thesis.

Client i has points around y = a_i x + b_i and takes K_i local steps on the mean squared error. The
model is (a, b), so that its path is a picture. The thesis prints the problem and no numbers: lines,
points, steps and step size are chosen here. Runs in seconds; writes runs/trajectories.png.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import undrift as ud

LINES = [(2.0, 3.0), (-1.0, 1.0), (1.0, -2.0)]  # a_i and b_i
STEPS = [1, 4, 16]  # K_i: the last client is the fast one
START, LR, ROUNDS = (-2.0, -3.0), 0.03, 40

rng = np.random.default_rng(0)
pairs = []
for a, b in LINES:
    x = rng.uniform(-2, 2, (100, 1))
    y = a * x + b + rng.normal(0, 0.3, x.shape)
    pairs.append((torch.from_numpy(x), torch.from_numpy(y)))
clients = ud.Clients(pairs)

# All clients hold equally many points, so the best line is that of all points together.
points, values = (torch.cat(parts).numpy() for parts in zip(*pairs, strict=True))
optimum = np.linalg.lstsq(np.hstack([points, np.ones_like(points)]), values, rcond=None)[0][:, 0]


def line_model() -> nn.Linear:
    """Return y = a x + b at the start that all methods share."""
    model = nn.Linear(1, 1).double()
    nn.utils.vector_to_parameters(torch.tensor(START).double(), model.parameters())
    return model


def path_of(algorithm: ud.Federated) -> np.ndarray:
    """Return (rounds + 1, 2) the server's (a, b) before the first round and after each."""
    run = ud.simulate(
        algorithm,
        line_model(),
        clients,
        loss=nn.functional.mse_loss,
        work=ud.Steps(STEPS),
        batch_size=None,  # gradients on all points of a client, without noise
        rounds=ROUNDS,
        evaluation=ud.EvaluationOptions(every=ROUNDS),
        seed=0,
    )
    places = [run.x.clone(), *(run.x.clone() for _ in run)]
    return torch.stack(places).numpy()


mean_steps = float(np.mean(STEPS))
methods = {
    "FedAvg": ud.FedAvg(lr=LR),
    "FedNova": ud.FedNova(lr=LR),
    "FedLin": ud.FedLin(lr=LR * mean_steps),  # its lr is that of a whole round
    "SCAFFOLD": ud.Scaffold(lr=LR),
    "FedaGrac": ud.FedaGrac(lr=LR),
}
paths = {name: path_of(algorithm) for name, algorithm in methods.items()}

print(f"best line: a = {optimum[0]:.3f}, b = {optimum[1]:.3f}")
for name, path in paths.items():
    away = np.linalg.norm(path - optimum, axis=1)
    near = np.flatnonzero(away < 0.05)
    reached = f"within 0.05 in round {near[0]}" if len(near) else "never within 0.05"
    # A straight path is as long as the way from its start to its end.
    length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
    detour = length / np.linalg.norm(path[-1] - path[0])
    print(
        f"{name:9} ends at a = {path[-1, 0]:6.3f}, b = {path[-1, 1]:6.3f}, {away[-1]:.3f} from "
        f"the best line, {reached}; its path is {detour:.2f} times the straight way"
    )


def draw(file: Path) -> None:
    """Draw the paths in the plane of (a, b)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for name, path in paths.items():
        axes.plot(*path.T, "o-", markersize=3, linewidth=1, label=name)
    for (a, b), steps in zip(LINES, STEPS, strict=True):
        axes.plot(a, b, "ks", fillstyle="none")
        axes.annotate(f"K = {steps}", (a, b), (6, 4), textcoords="offset points")
    axes.plot(*START, "kx", label="start")
    axes.plot(*optimum, "k*", markersize=14, label="best line")
    axes.set(xlabel="a", ylabel="b")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


try:
    picture = Path("runs") / "trajectories.png"
    picture.parent.mkdir(exist_ok=True)
    draw(picture)
    print(f"{picture} written")
except ImportError:
    print("The picture needs matplotlib: pip install 'undrift[report]'")

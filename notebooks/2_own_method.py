# %% [markdown]
# # Your own method in twenty lines
#
# FedAvg's server takes the mean of the clients' updates and forgets it. Let it remember: momentum on the server. The method is a frozen dataclass of hyper-parameters with five pure
# functions, written for one client on one flat vector.

# %%
from dataclasses import dataclass
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch

import undrift as ud
from undrift.testing import check_algorithm


class HeavyServer(NamedTuple):
    x: torch.Tensor  # the model
    m: torch.Tensor  # what the server remembers


@dataclass(frozen=True)
class Heavy(ud.Federated):
    """Adds momentum to the server: m <- beta m + mean of updates; x <- x + m."""

    lr: float
    beta: float = 0.9

    def init(self, x0):
        return HeavyServer(x0, torch.zeros_like(x0))

    def init_client(self, x0, down):
        return ()  # clients keep nothing

    def broadcast(self, server):
        return server.x

    def local(self, down, client, steps):
        y = steps(lambda y, f: y - self.lr * f.grad(y), down)
        return y - down, client  # an increment, never y itself

    def update(self, server, mean, cohort):
        m = self.beta * server.m + mean
        return HeavyServer(server.x + m, m)


# %% [markdown]
# ## Does it keep the contract?
#
# `check_algorithm` runs it in every way the engines will: clients one by one and stacked, with unequal steps, with half of the clients absent, stopped and resumed.

# %%
check_algorithm(Heavy(lr=0.1))
print("Heavy passes every check of the contract.")

# %% [markdown]
# What a broken contract looks like: this one uploads its model instead of an increment.


# %%
class Absolute(Heavy):
    def local(self, down, client, steps):
        return steps(lambda y, f: y - self.lr * f.grad(y), down), client


try:
    check_algorithm(Absolute(lr=0.1))
except Exception as error:
    print(type(error).__name__, "-", str(error).splitlines()[0])

# %% [markdown]
# ## Is it the method it should be?
#
# A method has closed forms to be held against. With `beta=0` it must be FedAvg, and at the same momentum the FedAvgM that undrift has, both up to the rounding of float32.

# %%
digits = ud.data.load("digits")
clients = digits.split("dirichlet:0.3", 20, seed=0)
torch.manual_seed(0)
model = ud.models.build("mlp", shape=digits.shape, classes=10)


def trained(algorithm, rounds=25):
    run = ud.simulate(
        algorithm,
        model,
        clients,
        loss=torch.nn.functional.cross_entropy,
        work=ud.Steps(10),
        batch_size=20,
        participation=0.5,
        rounds=rounds,
        seed=0,
    )
    return list(run), run.state.x


for ours, theirs in (
    (Heavy(0.1, beta=0.0), ud.FedAvg(0.1)),
    (Heavy(0.1, beta=0.8), ud.FedAvgM(0.1, beta=0.8)),
):
    apart = (trained(ours, 5)[1] - trained(theirs, 5)[1]).abs().max()
    print(f"{ours} and {theirs.__class__.__name__} differ by {float(apart):.1g} at most")

# %% [markdown]
# ## Does it help?
#
# Same data, cohorts and batches for all; one seed, so this is a look and no result.

# %%
curves = {
    "FedAvg": trained(ud.FedAvg(0.1))[0],
    "Heavy, beta 0.5": trained(Heavy(0.1, beta=0.5))[0],
    "Heavy, beta 0.9": trained(Heavy(0.1, beta=0.9))[0],
}
figure, axes = plt.subplots(figsize=(6, 3.6))
for label, records in curves.items():
    axes.plot([r.round for r in records], [r.accuracy for r in records], label=label)
axes.set(xlabel="round", ylabel="accuracy")
axes.legend()
plt.show()
for label, records in curves.items():
    print(
        f"{label:16} accuracy, mean of the last five rounds {sum(r.accuracy for r in records[-5:]) / 5:.3f}"
    )

# %% [markdown]
# In a file `mine.py` the class is a name for every command: `undrift check mine.py:Heavy`, `undrift compare fedavg mine.py:Heavy --tune lr=0.03,0.1,0.3 --seeds 5`.

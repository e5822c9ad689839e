# %% [markdown]
# # Step asynchronism: FedaGrac on mixed devices
#
# Clients compute at different speeds. If each does what it can until a deadline, fast ones make many local steps and slow ones few, and FedAvg moves towards the optimum of the *fast* clients.
# FedaGrac calibrates gradients so that it does not. First where the answer is known, then on simulated devices.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import undrift as ud

# %% [markdown]
# ## Two clients, one number
#
# Client 0 has targets at 1, client 1 at -1; the best common number is 0. Client 0 makes 20 steps a round, client 1 makes one.


# %%
class Number(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, inputs):
        return self.value.expand(len(inputs), 1)


two = ud.Clients([(torch.zeros(8, 1), torch.full((8, 1), side)) for side in (1.0, -1.0)])


def path(algorithm):
    run = ud.simulate(
        algorithm,
        Number(),
        two,
        loss=nn.functional.mse_loss,
        work=ud.Steps([20, 1]),
        rounds=30,
        seed=0,
    )
    return [0.5, *(float(run.state.x) for _ in run)]


figure, axes = plt.subplots(figsize=(6, 3.4))
for algorithm in (ud.FedAvg(0.02), ud.FedNova(0.02), ud.FedaGrac(0.02)):
    values = path(algorithm)
    axes.plot(values, label=f"{type(algorithm).__name__}, ends at {values[-1]:.2f}")
axes.axhline(0, color="k", ls=":", lw=1)
axes.set(xlabel="round", ylabel="common number")
axes.legend()
plt.show()

# %% [markdown]
# FedAvg stops where one step of the slow client undoes twenty of the fast one. FedNova weighs directions instead of updates, which removes most of it; what is left is that twenty steps together are shorter
# than twenty times the first. FedaGrac arrives.
#
# ## A deadline, nine sensors and a laptop
#
# Ten clients with two digits each. Each trains until the deadline, at most ten epochs: who makes how many steps follows from FLOPs, FLOP/s and the link.

# %%
digits = ud.data.load("digits")
clients = digits.split("classes:2", 10, seed=0)
sensor = ud.Device("sensor", speed=5e7, up=1e7, down=1e7, latency=1e-3)  # FLOP/s, bit/s, seconds
laptop = ud.Device("laptop", speed=5e10, up=1e8, down=1e8, latency=1e-3)
fleet = [sensor] * 9 + [laptop]
steps = {}


def trained(algorithm, rounds=30):
    torch.manual_seed(0)
    run = ud.simulate(
        algorithm,
        ud.models.build("logistic", shape=digits.shape, classes=10),
        clients,
        loss=nn.functional.cross_entropy,
        fleet=ud.Fleet(fleet),
        work=ud.Deadline(DEADLINE, ud.Epochs(10)),
        batch_size=10,
        rounds=rounds,
        seed=0,
    )
    records = list(run)
    steps[type(algorithm).__name__] = records[0].gradients
    return records


DEADLINE = 0.015
curves = {type(a).__name__: trained(a) for a in (ud.FedAvg(0.1), ud.FedNova(0.1), ud.FedaGrac(0.1))}
figure, axes = plt.subplots(figsize=(6, 3.6))
for label, records in curves.items():
    axes.plot([r.round for r in records], [r.accuracy for r in records], label=label)
axes.set(xlabel="round", ylabel="accuracy")
axes.legend()
plt.show()

# %%
for label, records in curves.items():
    last = sum(r.accuracy for r in records[-5:]) / 5
    seconds = sum(r.simulated_seconds for r in records)
    print(
        f"{label:9} accuracy {last:.3f}, {steps[label]} steps of all in a round, {seconds * 1000:.0f} simulated ms"
    )

# %% [markdown]
# FedaGrac sends two vectors, so its slow clients lose some of their steps to the link; the clock is nearly the same for all. One seed: `undrift compare fedavg fednova fedagrac --fleet ... --work deadline:... --tune lr=... --seeds 5`
# gives intervals. [Devices](../fleet.md) has the same on Fashion-MNIST, and [the thesis's own tables](../papers/fedagrac.md) what came out there.

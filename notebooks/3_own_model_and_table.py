# %% [markdown]
# # Your own model and table
#
# Four hospitals hold patients of different ages in one table, and want one model without pooling rows. The table here is made up by a rule we know, so that we can see what is learnt.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import nn

import undrift as ud

rng = np.random.default_rng(0)
hospitals = {"east": 35, "north": 50, "south": 65, "west": 75}  # mean age of the patients
rows = []
for name, mean_age in hospitals.items():
    for _ in range(200):
        age, pressure, smoker = rng.normal(mean_age, 10), rng.normal(120, 15), rng.random() < 0.3
        risk = (age - 55) / 10 + (pressure - 120) / 15 + 2 * smoker + rng.normal(0, 0.5)
        rows.append(
            (
                name,
                round(age),
                round(pressure),
                "yes" if smoker else "no",
                "ward" if risk > 0 else "home",
            )
        )
table = pd.DataFrame(rows, columns=["hospital", "age", "pressure", "smoker", "goes"])
table.groupby("hospital").agg(
    rows=("age", "size"), age=("age", "mean"), ward=("goes", lambda g: (g == "ward").mean())
).round(2)

# %% [markdown]
# East sends few patients to a ward and west nearly all: a model that only east trained would send everybody home.
#
# ## One client for each hospital
#
# Numbers are standardised and words become 0/1 features, both fitted to training rows. A fifth of the rows is held out.

# %%
stored = ud.data.read_table(table, target="goes", client="hospital")
patients = ud.Dataset.of(stored, name="patients")
clients = patients.split("natural")
print(patients)
print(stored.names)

# %% [markdown]
# ## Any `nn.Module`


# %%
class Risk(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.hidden = nn.Linear(features, 16)
        self.classifier = nn.Linear(16, classes)

    def forward(self, inputs):
        return self.classifier(torch.tanh(self.hidden(inputs)))


def trained(algorithm, clients, rounds=20):
    torch.manual_seed(0)
    run = ud.simulate(
        algorithm,
        Risk(*patients.shape, patients.classes),
        clients,
        loss=nn.functional.cross_entropy,
        work=ud.Epochs(2),
        batch_size=20,
        rounds=rounds,
        seed=0,
    )
    return list(run), run


together, run = trained(ud.Scaffold(lr=0.1), clients)
print(together[-1])

# %% [markdown]
# ## Was it worth it?
#
# Each hospital alone, as many steps on its own rows, tested on everybody's held-out rows; beside it all four together.

# %%
alone = {}
for i, name in enumerate(patients.client_names):
    own = ud.Clients([clients[i]], test=clients.test, prepare=clients.prepare)
    alone[name] = trained(ud.FedAvg(lr=0.1), own)[0][-1].accuracy
bars = {**alone, "together": together[-1].accuracy}
figure, axes = plt.subplots(figsize=(6, 3))
axes.bar(bars.keys(), bars.values(), color=["C7"] * 4 + ["C0"])
axes.axhline(np.bincount(patients.test[1]).max() / len(patients.test[1]), color="k", ls=":", lw=1)
axes.set(ylabel="accuracy on all", ylim=(0.4, 1))
plt.show()
print({name: round(value, 3) for name, value in bars.items()})

# %% [markdown]
# The dotted line is the accuracy of always giving the more frequent answer.
#
# ## Score new rows
#
# The fitted preprocessing belongs to the model, so rows come as they are. The rule says: a smoker of 70 with high pressure goes to a ward, a young non-smoker home.

# %%
torch.manual_seed(0)
framed = ud.Clients(table, target="goes", client="hospital")
final = ud.simulate(
    ud.Scaffold(lr=0.1),
    Risk(*patients.shape, patients.classes),
    framed,
    loss=nn.functional.cross_entropy,
    work=ud.Epochs(2),
    batch_size=20,
    rounds=20,
    seed=0,
)
list(final)
new = pd.DataFrame({"age": [70, 30], "pressure": [140, 115], "smoker": ["yes", "no"]})
final.predict(new).round(3)

# %% [markdown]
# From the shell: `undrift run scaffold --data patients.csv:target=goes,client=hospital --model mine.py:Risk`, then `undrift predict runs/scaffold-1 new.csv`.

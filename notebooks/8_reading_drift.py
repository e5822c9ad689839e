# %% [markdown]
# # Reading drift
#
# What does "client drift" look like from inside? Three views: how far local models are apart, whether they point the same way, and what the loss looks like between them.

# %%
import matplotlib.pyplot as plt
import torch

import undrift as ud
from undrift.analysis.loss_surface import loss_of, surface

digits = ud.data.load("digits")
LOSS = torch.nn.functional.cross_entropy


def trained(algorithm, law="dirichlet:0.1", rounds=20):
    torch.manual_seed(0)
    model = ud.models.build("mlp", shape=digits.shape, classes=10)
    drift = ud.Drift(cka=(model, digits.test[0][:200]), since="start")
    local = {}

    def tap(upload):
        drift(upload)
        local.pop(upload.client, None)  # so that the clients of the last round come last
        local[upload.client] = upload.y

    run = ud.simulate(
        algorithm,
        model,
        digits.split(law, 20, seed=0),
        loss=LOSS,
        work=ud.Steps(20),
        batch_size=20,
        participation=0.5,
        rounds=rounds,
        tap=tap,
        seed=0,
    )
    records = list(run)
    last_cohort = [local[i] for i in list(local)[-3:]]
    return records, drift, run, last_cohort


# %% [markdown]
# ## Divergence and cosine
#
# `divergence` is the mean squared distance of local models from their mean, relative to the squared length of the mean update; `cosine` the mean cosine between two clients' updates. Clients that are alike first:

# %%
runs = {
    "FedAvg, iid": trained(ud.FedAvg(lr=0.1), "iid"),
    "FedAvg": trained(ud.FedAvg(lr=0.1)),
    "SCAFFOLD": trained(ud.Scaffold(lr=0.1)),
    "FedACG": trained(ud.FedACG(lr=0.1)),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for label, (_, drift, _, _) in runs.items():
    rounds = [each.round for each in drift.rounds]
    left.semilogy(rounds, [each.divergence for each in drift.rounds], label=label)
    right.plot(rounds, [each.cosine for each in drift.rounds], label=label)
left.set(xlabel="round", ylabel="divergence")
right.set(xlabel="round", ylabel="cosine of two clients' updates")
left.legend()
plt.show()
for label, (records, drift, _, _) in runs.items():
    last = drift.rounds[-1]
    accuracy = sum(r.accuracy for r in records[-5:]) / 5
    print(
        f"{label:12} accuracy {accuracy:.3f}, divergence {last.divergence:7.2f}, cosine {last.cosine:5.2f}"
    )

# %% [markdown]
# In round 20 even clients that are alike agree on little, since what is left to learn is small beside the noise of minibatches. With different label mixes the updates of two FedAvg clients are nearly at right angles and local models lie
# further apart, relative to the step that they make together. SCAFFOLD's corrections turn them towards each other. FedACG does not; it gains elsewhere, by momentum.
#
# ## CKA: do layers compute the same?
#
# Linear CKA is 1 where two clients' layers make the same features of the same inputs, up to rotation and scale.

# %%
figure, axes = plt.subplots(figsize=(6, 3.4))
for label, (_, drift, _, _) in runs.items():
    layers = drift.rounds[-1].cka
    axes.plot(range(len(layers)), layers.values(), "o-", label=label)
axes.set(xticks=range(len(layers)), xticklabels=layers, ylabel="CKA, mean over pairs")
axes.legend()
plt.show()

# %% [markdown]
# ## The loss between three clients
#
# The plane through the local models of three clients, with the loss on the test set. The cross is their mean, which is what the server makes of them.

# %%
figure, both = plt.subplots(1, 2, figsize=(10, 4))
for axes, label in zip(both, ("FedAvg, iid", "FedAvg"), strict=True):
    _, _, run, three = runs[label]
    plane = surface(three, loss_of(run, digits.test), size=15, margin=0.3)
    filled = axes.contourf(plane.u, plane.v, plane.losses, levels=15, cmap="viridis")
    axes.plot(*plane.points.T, "wo")
    axes.plot(*plane.mean, "rx", ms=10, mew=3)
    axes.set(title=label, aspect="equal")
    figure.colorbar(filled, ax=axes)
    at = loss_of(run, digits.test)
    print(
        label,
        "- loss of the three",
        [round(at(y), 2) for y in three],
        "of their mean",
        round(at(sum(three) / 3), 2),
    )
plt.show()

# %% [markdown]
# Where clients are alike, all three models have about the loss of their mean. Where they are not, each model has a higher loss than the mean: averaging undoes the drift, but what the clients
# have learned in opposite directions cancels. [Metrics](../metrics.md) defines all of these.

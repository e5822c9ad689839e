# %% [markdown]
# # Gossip: NET-FLEET, its graph and consensus
#
# Twenty nodes, two digits each, no server. Each node holds a model of its own and talks to its neighbours once in ten steps.

# %%
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch

import undrift as ud

links = ud.topology.erdos_renyi(20, 0.25, seed=1)
ring = ud.topology.ring(20)
print(links, "has", links.links, "links, spectral gap", round(links.spectral_gap, 3))
print(ring, "has", ring.links, "links, spectral gap", round(ring.spectral_gap, 3))

# %% [markdown]
# The spectral gap says how fast repeated mixing makes nodes agree: a mixing leaves at most the share 1 - gap of their disagreement.

# %%
graph = nx.from_numpy_array(np.asarray(links.W) * (1 - np.eye(20)))
figure, axes = plt.subplots(figsize=(5, 4))
nx.draw_networkx(
    graph,
    nx.spring_layout(graph, seed=3),
    ax=axes,
    node_color="C0",
    font_color="w",
    font_size=8,
    width=[8 * graph[a][b]["weight"] for a, b in graph.edges],
)
axes.set_axis_off()
plt.show()

# %% [markdown]
# ## LD-SGD and NET-FLEET
#
# Both gossip once a round of ten steps. LD-SGD mixes models; NET-FLEET also tracks the mean gradient, so that with full gradients and a constant rate the nodes end at the common optimum and agree.

# %%
digits = ud.data.load("digits")
parts = ud.data.shards(digits.train[1], clients=20, per_client=2, seed=0)
clients = ud.Clients.split(*digits.train, parts, test=digits.test)


def trained(algorithm, topology=links, rounds=150):
    torch.manual_seed(0)
    run = ud.simulate(
        algorithm,
        ud.models.build("mlp", shape=digits.shape, classes=10),
        clients,
        loss=torch.nn.functional.cross_entropy,
        topology=topology,
        work=ud.Steps(10),
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=5),
        seed=0,
    )
    return [record for record in run if record.accuracy is not None]


curves = {type(a).__name__: trained(a) for a in (ud.LDSGD(lr=0.05), ud.NetFleet(lr=0.05))}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for colour, (label, records) in zip(("C1", "C0"), curves.items(), strict=True):
    rounds = [r.round for r in records]
    left.plot(rounds, [r.accuracy for r in records], colour, label=f"{label}, mean model")
    left.plot(
        rounds, [r.node_accuracy for r in records], colour, ls=":", label=f"{label}, nodes' own"
    )
    right.semilogy(rounds, [r.consensus for r in records], colour, label=label)
left.set(xlabel="round", ylabel="accuracy")
right.set(xlabel="round", ylabel="consensus error")
left.legend()
right.legend()
plt.show()
for label, records in curves.items():
    last = records[-1]
    print(
        f"{label:9} mean model {last.accuracy:.3f}, nodes' own {last.node_accuracy:.3f}, consensus {last.consensus:.2g}"
    )

# %% [markdown]
# The dotted lines are what a node can use: its own model. There the difference is widest, because LD-SGD's nodes go on disagreeing. NET-FLEET pays with twice the traffic.
#
# ## A ring, and links that fail

# %%
for name, topology in {
    "Erdos-Renyi": links,
    "the same, 30 % of links lost in each round": ud.topology.DroppedLinks(links, p=0.3),
    "ring": ring,
}.items():
    last = trained(ud.NetFleet(lr=0.05), topology)[-1]
    print(f"{name:43} nodes' own {last.node_accuracy:.3f}, consensus {last.consensus:.2g}")

# %% [markdown]
# [Training without a server](../decentralised.md) compares four methods, each at its best rate, with two seeds; [topologies](../topology.md) has the graphs and their gaps.

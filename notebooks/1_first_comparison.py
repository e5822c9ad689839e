# %% [markdown]
# # A first comparison
#
# Ten clients hold handwritten digits, each a label mix of its own. Which method makes the best of it, and is the difference more than luck?
# The digits are a part of the package, so nothing is downloaded.

# %%
import matplotlib.pyplot as plt
import torch

import undrift as ud

digits = ud.data.load("digits")
clients = digits.split("dirichlet:0.3", 10, seed=0)
print(clients)

# %% [markdown]
# Who holds which labels? A darker cell is more samples. With `dirichlet:0.3` a few digits make up most of a client.

# %%
counts = torch.stack([torch.bincount(clients[i][1], minlength=10) for i in range(10)])
figure, axes = plt.subplots(figsize=(5, 3.4))
axes.imshow(counts, cmap="Blues")
axes.set(xlabel="digit", ylabel="client", xticks=range(10), yticks=range(10))
plt.show()

# %% [markdown]
# ## Each method at its own learning rate
#
# One learning rate for all would decide the comparison before it begins. `ud.compare` tunes every method with the same number of trials on samples that are split off for tuning, and
# then runs each with fresh seeds on the same data, cohorts and batches. Three methods, three rates, three seeds:

# %%
result = ud.compare(
    ["fedavg", "scaffold", "fedacg"],
    "mlp",
    "digits",
    tune={"lr": [0.1, 0.3, 0.9]},
    extend=0,  # the default, 2, adds a value for each method while a choice is at an edge
    seeds=3,
    rounds=15,
    work="steps:10",
    participation=0.5,
    changes={"data.clients": 10},
    out="first-comparison",
    force=True,
    jobs=1,
)
print(result.table())

# %% [markdown]
# The sentences at the end are what may be quoted: a difference is *shown* where its interval, over seeds and corrected for the number of comparisons, excludes zero. With three seeds intervals
# are wide, and a lead of several points may remain unshown.
#
# ## Against rounds, and against bytes
#
# SCAFFOLD sends two vectors where the others send one, so in the second picture it has spent twice as much by the same round.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
result.plot("accuracy", "round", ax=left)
result.plot("accuracy", "bytes", ax=right)
left.set_ylim(0.4, 1)
plt.show()

# %% [markdown]
# All records are a pandas frame, one row a round:

# %%
frame = result.frame()
frame.groupby("label")[["accuracy", "bytes_up", "gradients"]].last().round(3)

# %% [markdown]
# `result.report("page.html")` writes the same as one page that works offline. In the shell all of this is
# `undrift compare fedavg scaffold fedacg --tune lr=0.1,0.3,0.9 --seeds 3 --rounds 15 --clients 10 --work steps:10`.

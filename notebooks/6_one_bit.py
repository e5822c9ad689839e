# %% [markdown]
# # One bit with Marsit
#
# Eight workers compute gradients on the same model and must add them up over links that are too slow for 32 bits a coordinate. A sum of signs grows at every hop; compressing anew at every hop
# loses what it said. Marsit merges two bits into one by chance, so that one bit a coordinate travels at every hop and the mean is right on average.

# %%
import matplotlib.pyplot as plt
import torch

import undrift as ud

digits = ud.data.load("digits")
clients = digits.split("iid", 8, seed=0)


def trained(algorithm, route="ring", rounds=150):
    torch.manual_seed(0)
    run = ud.simulate(
        algorithm,
        ud.models.build("mlp", shape=digits.shape, classes=10),
        clients,
        loss=torch.nn.functional.cross_entropy,
        allreduce=route,
        work=ud.Steps(1),
        batch_size=40,
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=10),
        seed=0,
    )
    return list(run), run


methods = {
    "PSGD, 32 bits": ud.PSGD(lr=0.3),
    "signSGD": ud.SignSGD(lr=0.01),
    "Marsit": ud.Marsit(lr=0.3, server_lr=0.01),
    "Marsit-50": ud.Marsit(lr=0.3, server_lr=0.01, period=50),  # every 50th round in full
}
done = {label: trained(algorithm) for label, algorithm in methods.items()}
for label, (records, run) in done.items():
    last = records[-1]
    kept = "" if last.sign_matching is None else f", {last.sign_matching:.0%} of signs kept"
    print(
        f"{label:13} accuracy {last.accuracy:.3f}, {run.totals.bytes_up / 1e6:6.2f} MB, "
        f"{records[1].bits:5.2f} bits a coordinate and hop{kept}"
    )

# %% [markdown]
# Every message is the bytes that would be sent, so the second picture is measured and not computed.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
for label, (records, _) in done.items():
    tested = [r for r in records if r.accuracy is not None]
    sent, total = {}, 0
    for record in records:
        total += record.bytes_up
        sent[record.round] = total / 1e6
    left.plot([r.round for r in tested], [r.accuracy for r in tested], label=label)
    right.semilogx([sent[r.round] for r in tested], [r.accuracy for r in tested], label=label)
left.set(xlabel="round", ylabel="accuracy")
right.set(xlabel="MB sent by all workers")
left.legend()
plt.show()

# %% [markdown]
# After as many rounds Marsit is some points behind full precision, for a thirtieth of the bytes; every 50th round in full gets a part of it back. At equal megabytes one bit is far ahead. signSGD, whose every coordinate
# moves by the same step, does best here with eight like workers, and its sums of signs grow with their number. One seed and one rate each: [one bit](../onebit.md) has comparisons.
#
# ## What cascading does
#
# Compress, send, decompress, add, compress again: that is what the thesis's Section 3.2 warns of. The share of signs that agree with the exact mean says why.

# %%
for label, algorithm in {
    "cascading, the printed norm": ud.CascadingSSDM(lr=0.3),
    "cascading, largest entry": ud.CascadingSSDM(lr=0.3, norm="inf"),
    "Marsit": ud.Marsit(lr=0.3, server_lr=0.01),
}.items():
    try:
        records, run = trained(algorithm, rounds=60)
        matching = sum(r.sign_matching for r in records) / len(records)
        print(f"{label:28} accuracy {records[-1].accuracy:.3f}, {matching:.1%} of the signs kept")
    except ud.DivergenceError as error:
        print(f"{label:28} diverges: {str(error).splitlines()[0][:90]}")

# %% [markdown]
# ## Routes
#
# The same method on other routes: a torus sends as much as a ring in fewer hops; a tree has the fewest hops, and a busier worker.

# %%
for route in ("ring", "torus:2x4", "tree"):
    records, run = trained(ud.Marsit(lr=0.3, server_lr=0.01), route, rounds=50)
    print(
        f"{route:10} {records[-1].hops:2} hops, {records[-1].bytes_per_worker} bytes from the busiest worker, accuracy {records[-1].accuracy:.3f}"
    )

# %% [markdown]
# On real links: [distributed](../distributed.md); in a DDP script, two lines: [DDP hooks](../ddp.md); what the thesis claims and what came out: [Marsit](../papers/marsit.md).

"""Eight workers on a ring: full precision beside one bit a coordinate and hop. Runs in seconds."""

import torch

import undrift as ud

digits = ud.data.digits()
parts = ud.data.iid(digits.train[1], clients=8, seed=0)
clients = ud.Clients.split(*digits.train, parts, test=digits.test)
torch.manual_seed(0)
model = ud.models.build("mlp", shape=(64,), classes=10)

methods = {
    "PSGD": ud.PSGD(lr=0.3),
    "signSGD": ud.SignSGD(lr=0.01),
    "Marsit": ud.Marsit(lr=0.3, server_lr=0.01),
    "Marsit-50": ud.Marsit(lr=0.3, server_lr=0.01, period=50),  # every 50th round in full
}
for name, algorithm in methods.items():
    run = ud.simulate(
        algorithm,
        model,
        clients,
        loss=torch.nn.functional.cross_entropy,
        allreduce="ring",  # or "torus:2x4", "tree", "server", "segmented-ring"
        work=ud.Steps(1),
        batch_size=40,
        rounds=100,
        evaluation=ud.EvaluationOptions(every=100),
        seed=0,
    )
    *_, record = run
    kept = "" if record.sign_matching is None else f", {record.sign_matching:.0%} of signs kept"
    print(
        f"{name:9} accuracy {record.accuracy:.3f}, {run.totals.bytes_up / 1e6:6.2f} MB sent, "
        f"{record.bits:.2f} bits a coordinate and hop{kept}"
    )

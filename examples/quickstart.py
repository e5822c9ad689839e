"""Ten clients with different label mixes, two methods, one table. Runs in a few seconds."""

import torch

import undrift as ud

digits = ud.data.digits()
parts = ud.data.dirichlet(digits.train[1], clients=10, alpha=0.3, seed=0)
clients = ud.Clients.split(*digits.train, parts, test=digits.test)
torch.manual_seed(0)
model = ud.models.build("mlp", shape=(64,), classes=10)

for algorithm in (ud.FedAvg(lr=0.1), ud.FedSpeed(lr=0.1, lam=10, rho=0.1)):
    run = ud.simulate(
        algorithm,
        model,
        clients,
        loss=torch.nn.functional.cross_entropy,
        work=ud.Epochs(5),
        batch_size=20,
        participation=0.5,
        rounds=20,
        seed=0,
    )
    for record in run:
        if record.round % 5 == 0:
            print(f"{type(algorithm).__name__:10} {record}")

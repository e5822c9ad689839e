"""Twenty nodes with two labels each, no server: NET-FLEET beside LD-SGD. Runs in seconds."""

import torch

import undrift as ud
from undrift.topology import DroppedLinks, erdos_renyi

digits = ud.data.digits()
parts = ud.data.shards(digits.train[1], clients=20, per_client=2, seed=0)
clients = ud.Clients.split(*digits.train, parts, test=digits.test)
torch.manual_seed(0)
model = ud.models.build("logistic", shape=(64,), classes=10)

links = erdos_renyi(20, 0.3, seed=0)
print(f"{links}: {links.links} links, spectral gap {links.spectral_gap:.3f}")
for topology in (links, DroppedLinks(links, p=0.3)):  # the second loses 30 % of the links a round
    for algorithm in (ud.LDSGD(lr=0.1), ud.NetFleet(lr=0.1)):
        run = ud.simulate(
            algorithm,
            model,
            clients,
            loss=torch.nn.functional.cross_entropy,
            topology=topology,
            work=ud.Steps(10),  # gossip once, then nine steps alone
            batch_size=20,
            rounds=60,
            evaluation=ud.EvaluationOptions(every=20),
            seed=0,
        )
        *_, record = run
        print(
            f"{type(algorithm).__name__:9} over {topology}: mean model {record.accuracy:.3f}, "
            f"nodes' own {record.node_accuracy:.3f}, consensus error {record.consensus:.3g}, "
            f"{record.bytes_per_link} bytes a link and round"
        )
print(run.state.x.shape)  # a model for each node; run.model holds their mean

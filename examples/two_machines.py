"""One script, one process or many: alone it simulates, under torchrun its processes share the work.

On one machine:

    python examples/two_machines.py
    torchrun --nproc-per-node 2 examples/two_machines.py

On two, with R = 0 on the first, whose address is 10.0.0.1, and R = 1 on the second:

    GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes 2 --node-rank R --nproc-per-node 2 \
        --master-addr 10.0.0.1 --master-port 29500 examples/two_machines.py
"""

import torch

import undrift as ud

digits = ud.data.digits()
clients = digits.split("iid", 4, seed=0)
torch.manual_seed(0)
model = ud.models.build("mlp", shape=digits.shape, classes=10)

run = ud.simulate(
    ud.Marsit(lr=0.3, server_lr=0.01, period=25),  # one bit a coordinate, in full every 25 rounds
    model,
    clients,
    loss=torch.nn.functional.cross_entropy,
    allreduce="ring",
    work=ud.Steps(1),
    batch_size=40,
    rounds=50,
    evaluation=ud.EvaluationOptions(every=50),
    seed=0,
)
*_, record = run
if run.world.head:  # every process runs the whole script; one of them prints
    print(f"{run.world.size} processes, accuracy {record.accuracy:.3f}")
    print(f"each worker sent {record.bytes_per_worker} bytes in the last round")

"""What `undrift run` takes by name, with the first line that each says of itself.

Help and completion have them from here, because the classes themselves need torch.
"""

_LINES = """\
fedavg Plain averaging of local SGD; converges to a biased point on heterogeneous clients.
fedprox FedAvg with clients held near the server model; larger `mu`, shorter leash.
scaffold Control variates cancel the drift; exact for any K_i, whoever takes part.
fedspeed Prox-correction and gradient perturbation, for large local intervals and few rounds.
fedacg Clients start from a model already moved along the global momentum.
fedagrac Calibrated gradients for clients that run different numbers of steps.
fedavgm FedAvg with heavy-ball momentum on the server; larger `beta`, longer memory.
fedadam Adam on the server; larger `tau`, less adaptive.
fedyogi Yogi on the server: like Adam, but v moves by no more than (1 - beta2) D^2 a round.
fedadagrad Adagrad on the server; larger `tau`, less adaptive.
fedcm Every local step is drawn to the last global one; smaller `alpha`, longer memory.
feddyn A linear term per client makes the local optima agree; larger `alpha`, shorter leash.
fedpd Primal-dual with random skipping; larger `p`, fewer messages per local pass.
fedadmm Consensus ADMM with inexact local solves; larger `rho`, shorter leash and faster duals.
feddc FedDyn's drift variable and SCAFFOLD's correction in one; larger `alpha`, shorter leash.
fednova Averages directions instead of updates, so that clients with more steps weigh no more.
fedlin Fresh gradients of everybody before the local steps; exact for any K_i, without noise.
fedsam FedAvg whose clients look for flat minima; larger `rho`, wider look.
mofedsam FedSAM with every local step drawn to the last global one; smaller `alpha`, longer memory.
fedgamma Flat minima of the global objective: control variates carry its gradient to the clients.
moon Features are pulled to the global model's and away from the client's last one.
fedmlb Local blocks must also work in front of the global model's later blocks.
dsgd Gossip at every step; with a constant lr it ends at a biased point without consensus.
ldsgd Local SGD with gossip once a round; further from the optimum than DSGD, for less traffic.
gtsgd Gradient tracking: reaches the optimum of the mean objective with a constant lr.
netfleet Gossip once a round with recursive gradient correction, exact with a constant lr.
psgd Averages the workers' updates exactly: what every compressed method is measured against.
signsgd Each coordinate moves by server_lr, the way most workers' gradients point.
efsignsgd Signs scaled by the mean magnitude; what is lost is added to the next update.
ssdm Momentum sent as random signs, +1 the likelier the larger the entry.
cascadingssdm SSDM compressed anew at every hop: what one-bit all-reduce must not be.
marsit One bit a coordinate at every hop, unbiased, with global compensation of what was lost.
"""
SUMMARIES: dict[str, str] = dict(line.split(" ", 1) for line in _LINES.splitlines())
FILE_SUMMARY = (
    "Run what an experiment's file says: every method with every seed, in every cell of its sweep."
)

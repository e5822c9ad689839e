"""Words of other libraries, and what undrift has for them in Python, in files and in the shell."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal, NamedTuple

Place = Literal["python", "file", "shell"]


class Meaning(NamedTuple):
    """Says what a word means, and how that is written at each place; "" where there is nothing."""

    means: str
    python: str
    file: str
    shell: str


_RATE = Meaning(
    "the learning rate is",
    "lr, of the method: FedAvg(lr=0.1)",
    "lr, of a method: lr = 0.1 below [[methods]]",
    "--lr, such as --lr 0.1",
)
_EPOCHS = Meaning(
    "local epochs are",
    'work="epochs:5"',
    'training.work = "epochs:5"',
    "--epochs, such as --epochs 5",
)
_STEPS = Meaning(
    "local steps are",
    'work="steps:10"',
    'training.work = "steps:10"',
    "--work, such as --work steps:10",
)
_ROUNDS = Meaning(
    "communication rounds are",
    "rounds=50",
    "training.rounds = 50",
    "--rounds, such as --rounds 50",
)
_SHARE = Meaning(
    "the share of clients in a round, or their number, is",
    "participation=0.1, or participation=10",
    "training.participation = 0.1, or 10",
    "--participation, such as --participation 0.1",
)
_LOSS = Meaning(
    "the loss is",
    "loss=nn.CrossEntropyLoss()",
    'training.loss = "cross_entropy"',
    "--loss, such as --loss mse",
)
_RULE = Meaning(
    "a local optimiser is a rule of the method, such as",
    "FedAvg(lr=0.1, rule=Momentum(0.9))",
    'rule = "momentum:0.9" below [[methods]]',
    "--rule momentum:0.9 or --rule adamw",
)
_SCHEDULE = Meaning(
    "a schedule of rounds is a value of lr, such as",
    "FedAvg(lr=undrift.cosine(0.1, 50))",
    'lr = "cosine(0.1, 50)" below [[methods]]',
    "--lr 'cosine(0.1, 50)'",
)
_DATA = Meaning(
    "the data are",
    "clients, such as undrift.data.load('mnist').split('iid', 20) or "
    "undrift.Clients(data_of_each_client)",
    'data.name = "mnist", or data.path = "patients.csv"',
    "--data, such as --data mnist",
)
_TEST = Meaning(
    "samples for tests and validation are",
    "those of the clients: undrift.Clients(data, test=..., validation=...)",
    "those of the data; data.validation = 0.1 splits some off",
    "those of the data; --validation 0.1 splits some off",
)
_CLIENTS = Meaning(
    "the number of clients is",
    "that of the parts: data.split('iid', 20)",
    "data.clients = 20",
    "--clients, such as --clients 20",
)
_BATCH = Meaning(
    "samples of a step are",
    "batch_size=20",
    "training.batch_size = 20",
    "--batch-size, such as --batch-size 20",
)
_DEVICE = Meaning(
    "the device that computes is",
    'device="cuda:0"',
    'engine.device = "cuda:0"',
    "--device, such as --device cuda:0",
)
_FLEET = Meaning(
    "simulated devices are",
    "fleet='phone'; the device that computes is device=\"cuda:0\"",
    'fleet.kind = "phone"; the device that computes is engine.device = "cuda:0"',
    "--fleet, such as --fleet phone; the device that computes is --device, such as --device cuda:0",
)
_PROCESSES = Meaning(
    "clients run side by side in",
    "processes=2",
    "engine.processes = 2, runs by --jobs of the command",
    "--processes 2, runs by --jobs 2",
)
_EVERY = Meaning(
    "how often models are tested is",
    "evaluation=EvaluationOptions(every=10)",
    "evaluation.every = 10",
    "--evaluate-every, such as --evaluate-every 10",
)
_BAR = Meaning(
    "progress is shown by",
    "progress=True, and lines by logging.basicConfig(level='INFO')",
    "the command, unless it has --quiet",
    "the command, unless it has --quiet",
)
_SEED = Meaning("the seed is", "seed=0", "seeds = [0, 1, 2]", "--seed, such as --seed 0")
_LOOP = Meaning("a run is an iterator:", "say for record in run: print(record)", "", "")
_PATIENCE = Meaning(
    "a run stops after ten tests without a better one by",
    "early_stopping=10",
    "training.early_stopping = 10",
    "--early-stopping 10",
)
_DECAY = Meaning(
    "weight decay is",
    "weight_decay=0.001",
    "training.weight_decay = 0.001",
    "--weight-decay, such as --weight-decay 0.001",
)
_CLIP = Meaning(
    "the bound of a gradient's norm is",
    "clip=1.0",
    "training.clip = 1.0",
    "--clip, such as --clip 1",
)
_FOLDER = Meaning(
    "results go to a folder by",
    "undrift.compare(..., out='folder'), and checkpoints by checkpoint='folder'",
    "--out of the command",
    "--out, such as --out results",
)
_ALPHA = Meaning(
    "a Dirichlet partition is",
    "data.split('dirichlet:0.3', 20)",
    'data.partition = "dirichlet:0.3"',
    "--dirichlet, such as --dirichlet 0.3",
)
_HALF = Meaning(
    "half precision is",
    'precision="bf16"',
    'engine.precision = "bf16"',
    "--precision, such as --precision bf16",
)
_METHOD = Meaning(
    "the method is",
    "the first argument: simulate(FedAvg(lr=0.1), model, clients)",
    'name = "fedavg" below [[methods]]',
    "the first word: undrift run fedavg",
)
_MODEL = Meaning(
    "the network is",
    "model=",
    'model.name = "mlp" or "mine.py:Net"',
    "--model, such as --model mlp",
)

_WORDS: dict[Meaning, str] = {
    _RATE: "learning_rate lr rate local_lr local_learning_rate client_lr eta step_size",
    _EPOCHS: "epochs epoch local_epochs num_epochs n_epochs max_epochs local_ep e",
    _STEPS: "local_steps steps num_steps max_steps local_iterations tau",
    _ROUNDS: "rounds num_rounds n_rounds max_rounds global_rounds server_rounds comm_round "
    "comm_rounds communication_rounds global_epochs",
    _SHARE: "participation fraction frac fraction_fit client_fraction sample_fraction "
    "clients_per_round client_num_per_round join_ratio participation_rate c",
    _LOSS: "loss criterion loss_fn loss_func loss_function objective",
    _RULE: "optimizer optimiser optim local_optimizer momentum",
    _SCHEDULE: "scheduler lr_scheduler lr_schedule lr_decay",
    _DATA: "data dataset datasets dataloader dataloaders train train_data train_set train_dataset "
    "train_loader train_dataloader train_ds x_train",
    _TEST: "test test_data test_set test_dataset test_loader test_dataloader val val_data val_set "
    "val_dataset val_loader val_dataloader valid_loader validation_data eval_dataset eval_data "
    "x_test",
    _CLIENTS: "num_clients n_clients num_users client_num client_num_in_total",
    _BATCH: "batch_size bs b batch local_bs local_batch_size train_batch_size "
    "per_device_train_batch_size",
    _DEVICE: "device gpu gpus cuda use_cuda num_gpus device_ids accelerator",
    _FLEET: "devices",
    _PROCESSES: "num_workers n_workers n_jobs workers num_processes num_proc",
    _EVERY: "evaluate_every eval_every eval_freq eval_interval test_every eval_steps",
    _BAR: "verbose disp progress_bar enable_progress_bar tqdm",
    _SEED: "seed random_state random_seed manual_seed rng",
    _LOOP: "callbacks callback",
    _PATIENCE: "early_stopping patience early_stopping_patience early_stopping_rounds",
    _DECAY: "wd weight_decay l2 l2_reg reg_lambda",
    _CLIP: "clip grad_clip max_grad_norm gradient_clip gradient_clip_val clip_norm",
    _FOLDER: "out out_dir output output_dir save_dir save_path log_dir logdir default_root_dir",
    _ALPHA: "alpha dirichlet_alpha",
    _HALF: "precision amp fp16 bf16 mixed_precision",
    _METHOD: "strategy method aggregator",
    _MODEL: "net network arch architecture backbone model_name",
}
MEANINGS = MappingProxyType({w: m for m, words in _WORDS.items() for w in words.split()})
_JOINED = MappingProxyType({word.replace("_", ""): m for word, m in MEANINGS.items()})


def meaning_of(name: str, place: Place) -> str:
    """Return what undrift has for a word of another library, or "" where it is not known."""
    plain = name.strip("-").replace("-", "_").lower()
    found = MEANINGS.get(plain) or _JOINED.get(plain.replace("_", ""))
    said = getattr(found, place, "")
    return f"{found.means} {said}" if found and said else ""

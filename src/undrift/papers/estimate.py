"""Times of experiments are estimated here: gradients times the time of one, on two cores.

The times are those of one sample's gradient, on two idle cores of 2026 with compiled kernels where
a network has some. They are for choosing what to run, not for comparing machines.
"""

from __future__ import annotations

import math

from undrift.config.experiment import Experiment, Method
from undrift.core import Federated
from undrift.data import Deadline, Work
from undrift.runs.build import local_work
from undrift.runs.jobs import JobPlanner, sweep_axes

MILLISECONDS = {  # of one sample's gradient
    "logistic": 0.002,
    "mlp": 0.005,
    "cnn2": 0.05,
    "netfleet-cnn": 0.03,
    "femnist-cnn": 0.5,
    "celeba-cnn": 1.5,
    "char-lstm": 5.0,
    "text": 1.0,
    "alexnet": 1.3,
    "alexnet-wide": 3.5,
    "resnet20": 2.0,
    "resnet18-gn": 20.0,
    "resnet50-gn": 60.0,
    "vgg19": 15.0,
    "distilbert": 300.0,
}
SMALL_STEM = 3.4  # of resnet18-gn with the 7x7 stem, whose images are a quarter as wide
SAMPLES = {  # training and test samples of the data sets
    "mnist": (60000, 10000),
    "fashion-mnist": (60000, 10000),
    "cifar10": (50000, 10000),
    "cifar100": (50000, 10000),
    "tiny-imagenet": (100000, 10000),
    "a9a": (32561, 16281),
    "femnist": (80000, 8000),
    "celeba": (180000, 20000),
    "shakespeare": (3391987, 771051),
    "imdb": (25000, 25000),
    "digits": (1438, 359),
}
WIDER = {"tiny-imagenet": 4.0, "a9a": 0.03}  # the time of a sample beside that of usual images
SMALLER = 0.5  # the time of a grey 28 x 28 image in a convolutional net beside that of CIFAR's
GREY = ("mnist", "fashion-mnist")
CONVOLUTIONS = ("cnn2", "netfleet-cnn", "alexnet", "alexnet-wide", "resnet20")
# Milliseconds in which a training image is cropped and flipped, whatever the network.
AUGMENTED = {"cifar10": 0.007, "cifar100": 0.007, "tiny-imagenet": 0.028}
FORWARD = 1 / 3  # of a gradient's time
TWICE = ("fedspeed", "fedsam", "fedgamma", "mofedsam")  # methods with two gradients a step
DRAWN = 10  # clients whose steps are averaged
GUESSED_STEPS = 100  # of a deadline, whose steps depend on the devices


def hours(experiment: Experiment) -> float:
    """Return the hours that all jobs of an experiment take on two cores, roughly.

    Swept fields are taken to leave the work of a job as it is.
    """
    planner, axes = JobPlanner(experiment), sweep_axes(experiment.sweep)
    return sum(
        _job_hours(experiment, method) * len(experiment.seeds) * math.prod(map(len, own))
        for position, method in enumerate(experiment.methods)
        for own in [planner.own_axes(position, axes)]
    )


def _job_hours(experiment: Experiment, method: Method) -> float:
    training, data = experiment.training, experiment.data
    train, test = SAMPLES.get(data.name, (50000, 10000))
    train, test = min(train, data.train_samples or train), min(test, data.test_samples or test)
    clients = data.clients or 100
    own = train / clients
    work = local_work(method.build(), method.work or training.work)
    batch = training.batch_size or own
    samples = _samples(work, batch, own) * _cohort(experiment, method, clients)
    gradients = 2 if method.name in TWICE else 1
    evaluations = test * FORWARD / (experiment.evaluation.every or 1)
    computing = (samples * gradients + evaluations) * _milliseconds(experiment)
    a_round = computing + samples * AUGMENTED.get(data.name, 0.0)
    return training.rounds * a_round / 3.6e6


def _samples(work: Work, batch: float, own: float) -> float:
    """Return the samples of a client's round, on average over some clients."""
    if isinstance(work, Deadline):
        return GUESSED_STEPS * batch
    drawn = [work.steps(client=i, epoch=own / batch, t=0, seed=0) for i in range(DRAWN)]
    return sum(drawn) / DRAWN * batch


def _cohort(experiment: Experiment, method: Method, clients: int) -> float:
    share = experiment.training.participation
    if not issubclass(method.cls, Federated) or share is None:
        return float(clients)
    return float(share) if isinstance(share, int) else share * clients


def _milliseconds(experiment: Experiment) -> float:
    model = experiment.model
    time = MILLISECONDS.get(model.name, 1.0)
    options = model.model_extra or {}
    if model.name == "resnet18-gn" and options.get("stem", 3) == 7:
        time = SMALL_STEM
    if model.name == "char-lstm":  # Its gradient is one product of matrices after the other.
        time *= options.get("hidden", 256) / 256 * options.get("layers", 2) / 2
    name = experiment.data.name
    if name in GREY and model.name in CONVOLUTIONS:
        time *= SMALLER
    return time * WIDER.get(name, 1.0)

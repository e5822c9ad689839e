"""The options of commands: their names, types and help; names of data sets come from names.json."""

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.names import DATA_SETS, FLEETS, MODELS

DATA, TRAINING, OUTPUT = "Data and clients", "Training", "Output"
FLEET, PROCESSES = "Fleet (simulated devices)", "Processes"
DataOption = Annotated[
    str,
    typer.Option(
        help=f"{DATA_SETS}; a table of your own, patients.csv:target=died,client=site (further: "
        "task, drop=a+b, categorical, missing=impute, missing_target=drop, separator=semicolon, "
        "decimal=comma, transformer=mine.py:make, test_fraction, here); or code that returns "
        "data, mine.py:load.",
        rich_help_panel=DATA,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of data sets, looked into before $UNDRIFT_DATA and others.",
        rich_help_panel=DATA,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        help=f"{MODELS}; options as in resnet18-gn:stem=7. Or your own, mine.py:Net, with options "
        "as in mine.py:Net:hidden=64.",
        rich_help_panel=DATA,
    ),
]
ClientsOption = Annotated[
    int | None,
    typer.Option(
        "--clients", help="How many. Default: 20, or all natural ones.", rich_help_panel=DATA
    ),
]
PartitionOption = Annotated[
    str,
    typer.Option(
        help="iid, dirichlet[:0.3], dirichlet-sequential[:0.3], dirichlet-per-class[:0.3], "
        "shards[:2], shards:2x200, classes:5, classes-uneven:5, quantity:0.5, natural, "
        "replicated.",
        rich_help_panel=DATA,
    ),
]
DirichletOption = Annotated[
    float | None,
    typer.Option(
        "--dirichlet",
        help="Short for --partition dirichlet:ALPHA, 0.3 by default; smaller is more skewed.",
        rich_help_panel=DATA,
    ),
]
TrainSamplesOption = Annotated[
    int | None,
    typer.Option(help="Deal so many training samples, drawn once, not all.", rich_help_panel=DATA),
]
TestSamplesOption = Annotated[
    int | None,
    typer.Option(help="Test on so many samples, drawn once, not on all.", rich_help_panel=DATA),
]
ValidationOption = Annotated[
    float | None,
    typer.Option(
        help="Share of each client's samples to choose by, not trained on, such as 0.1.",
        rich_help_panel=DATA,
    ),
]
AugmentOption = Annotated[
    bool, typer.Option(help="Crop and flip images as documented.", rich_help_panel=DATA)
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        help="classification, multi-label, regression or language-modelling; decides loss and "
        "metrics. Default: what the targets are.",
        rich_help_panel=TRAINING,
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        help="cross_entropy, bce, mse, mae, huber, smooth_l1, or file.py:function of outputs and "
        "targets. Default: the task's.",
        rich_help_panel=TRAINING,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        help="What is measured besides loss and accuracy: auroc, balanced_accuracy, f1_macro, "
        "f1_micro, exact_match, top5_accuracy, rmse, mse, mae, r2, perplexity, or file.py:function "
        "of outputs and targets; several with commas. Default: the task's.",
        rich_help_panel=OUTPUT,
    ),
]
RoundsOption = Annotated[int, typer.Option(help="Communication rounds.", rich_help_panel=TRAINING)]
SeedOption = Annotated[int, typer.Option(help="Seed of everything.", rich_help_panel=TRAINING)]
ParticipationOption = Annotated[
    str | None,
    typer.Option(
        help="Fraction (1.0 is everybody) or count (1 is one client) of the clients that a server "
        "asks in a round. Default: 0.5.",
        rich_help_panel=TRAINING,
    ),
]
WorkOption = Annotated[
    str | None,
    typer.Option(
        help="Local steps between communications: steps:10, epochs:5, "
        "gaussian:MEAN:VARIANCE[:random], uniform:LOW:HIGH[:random], or deadline:SECONDS[:EPOCHS], "
        "what --fleet can do in time. Default: gaussian:20:100 with a server, steps:10 for "
        "gossip, steps:1 for all-reduce.",
        rich_help_panel=TRAINING,
    ),
]
EpochsOption = Annotated[
    float | None,
    typer.Option(
        "--epochs", help="Short for --work epochs:N, local passes.", rich_help_panel=TRAINING
    ),
]
EarlyStoppingOption = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many tests without a better one, and keep the best model.",
        rich_help_panel=TRAINING,
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option("--seeds", help="Repetitions with the seeds 0, 1, ...", rich_help_panel=TRAINING),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        help=f"Simulated devices of the clients, for a simulated clock: {FLEETS}; "
        "in proportions, phone:9,gpu-node:1 (the first clients are phones); or a CSV file.",
        rich_help_panel=FLEET,
    ),
]
SlowdownOption = Annotated[
    str | None,
    typer.Option(
        help="stragglers:0.1:5 (one in ten five times as slow) or jitter:0.3.",
        rich_help_panel=FLEET,
    ),
]
FailuresOption = Annotated[
    float,
    typer.Option(help="Probability that a client fails in a round.", rich_help_panel=FLEET),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(help="CSV of client,start,end: when who is there.", rich_help_panel=FLEET),
]
TracePeriodOption = Annotated[
    float | None,
    typer.Option(help="Seconds after which --trace repeats.", rich_help_panel=FLEET),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        help="Links of gossip methods: erdos-renyi[:0.5], ring, torus[:4x5], grid, complete, star, "
        "exponential, barabasi-albert[:2], small-world[:4:0.1]; +metropolis for those weights.",
        rich_help_panel=TRAINING,
    ),
]
AllReduceOption = Annotated[
    str | None,
    typer.Option(
        help="Route of all-reduce methods: ring, segmented-ring[:65536], torus[:2x4], tree, "
        "server.",
        rich_help_panel=TRAINING,
    ),
]
BatchSizeOption = Annotated[
    int, typer.Option(help="0: the whole local data.", rich_help_panel=TRAINING)
]
WeightingOption = Annotated[
    str | None,
    typer.Option(help="size (default) or uniform; peers: uniform.", rich_help_panel=TRAINING),
]
OnBadOption = Annotated[
    str,
    typer.Option(
        help="What a bad update does, NaN or far larger than the others: stop the run, or drop.",
        rich_help_panel=TRAINING,
    ),
]
QuorumOption = Annotated[
    str | None,
    typer.Option(
        help="Fraction or count of the drawn clients that a round needs, else it is void. "
        "Default: half with --on-bad drop.",
        rich_help_panel=TRAINING,
    ),
]
AggregationOption = Annotated[
    str | None,
    typer.Option(
        help="mean, or a rule that bears attackers: median, trimmed-mean:2, geometric-median, "
        "krum:2, multi-krum:2, centered-clipping.",
        rich_help_panel=TRAINING,
    ),
]
AttackOption = Annotated[
    str | None,
    typer.Option(
        help="What a share of the clients does: sign-flip:0.2, gaussian:0.2, alie:0.2, "
        "inner-product:0.2, scaling:0.2, label-flip:0.2.",
        rich_help_panel=TRAINING,
    ),
]
WeightDecayOption = Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=TRAINING)]
ClipOption = Annotated[
    float, typer.Option(help="Gradient norm limit; 0: none.", rich_help_panel=TRAINING)
]
EvaluateEveryOption = Annotated[
    int | None,
    typer.Option(
        "--evaluate-every",
        help="Rounds between tests; by default they take less than a fifth of the work.",
        rich_help_panel=TRAINING,
    ),
]
ModeOption = Annotated[
    str, typer.Option(help="auto, loop, threads or stacked.", rich_help_panel=TRAINING)
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="The hardware that computes: auto, cpu, cuda:0 or mps. Default: cpu.",
        rich_help_panel=TRAINING,
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="bf16: forward and backward passes in bfloat16. Default: fp32.",
        rich_help_panel=TRAINING,
    ),
]
TargetOption = Annotated[
    str, typer.Option(help="Accuracy to be reached, or several: 0.8,0.85.", rich_help_panel=OUTPUT)
]
AvailabilityOption = Annotated[
    str | None,
    typer.Option(
        help="Who is there: resampled:ACTIVE:EVERY or replaced:ACTIVE:EVERY:P.",
        rich_help_panel=DATA,
    ),
]
ClientMetricsOption = Annotated[
    bool,
    typer.Option(
        "--client-metrics",
        help="Measure each client's own samples, too: the spread and the worst tenth.",
        rich_help_panel=OUTPUT,
    ),
]
DriftOption = Annotated[
    bool,
    typer.Option(
        "--drift", help="Record how far clients' models drift apart.", rich_help_panel=OUTPUT
    ),
]
TrainLossOption = Annotated[
    bool,
    typer.Option(
        "--train-loss", help="Evaluate on the training data, too.", rich_help_panel=OUTPUT
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another value, e.g. --set training.rounds=5 --set fedspeed.lam=5"),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        help="Run this method's part, by name or label; may be repeated. --resume runs the rest.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run code that the file or folder names, such as mine.py:Net. Read the code first.",
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        help="A folder of results to go on with; what is finished there is kept.",
        rich_help_panel=OUTPUT,
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Follow with tensorboard, mlflow, wandb, wandb:online, or module:Class, too.",
        rich_help_panel=OUTPUT,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Folder for records and plots; default: runs/...", rich_help_panel=OUTPUT),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace --out; with --resume, go on although code or experiment differ.",
        rich_help_panel=OUTPUT,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Last line: JSON.", rich_help_panel=OUTPUT)
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        help="How many trials run at a time, each in a process of its own; default: as many as "
        "cores if they are long enough and small enough, else 1.",
        rich_help_panel=PROCESSES,
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        help="How many processes of this machine share the clients. On several machines: "
        "torchrun ... -m undrift run ...",
        rich_help_panel=PROCESSES,
    ),
]
MaxRestartsOption = Annotated[
    int,
    typer.Option(
        help="How often --processes starts again from the last checkpoint when one is lost.",
        rich_help_panel=PROCESSES,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        help="Seconds without an answer after which a process counts as hung.",
        rich_help_panel=PROCESSES,
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say how each run is executed, and why.", rich_help_panel=OUTPUT
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="No progress bar or lines.", rich_help_panel=OUTPUT)
]

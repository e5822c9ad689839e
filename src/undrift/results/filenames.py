"""The names of the files in a folder of results."""

EXPERIMENT, ENVIRONMENT = "experiment.toml", "environment.json"
CURVES, PARTITION, REPORT = "curves.png", "partition.png", "report.html"
LABEL_COUNTS = "partition.json"  # samples of each label on each client
MODEL = "model.safetensors"
SEARCH = "search.json"  # the cells that a search has chosen
DRIFT, SURFACE, SURFACE_PICTURE = ".drift.jsonl", ".surface.json", ".surface.png"  # of a trial
EARLIER = ".earlier-"  # and a number, in names of a trial's files that were moved aside
CHECKPOINTS, FIGURES, TRACKED = "checkpoints", "figures", "tracked"

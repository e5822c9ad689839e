"""The names of the files in a folder of results."""

EXPERIMENT, ENVIRONMENT = "experiment.toml", "environment.json"
CURVES, PARTITION, REPORT = "curves.png", "partition.png", "report.html"
LABEL_COUNTS = "partition.json"  # samples of each label on each client
CLIENT_METRICS = "client_metrics.csv"  # of the last test, a line for each client
MODEL = "model.safetensors"
SEARCH = "search.json"  # the cells that a search has chosen
AGREED = "agreed.json"  # the columns that sites have agreed on, and what telling took
TUNED = "tuned.json"  # the cells of the methods that tuning has chosen, or is trying
DRIFT, SURFACE, SURFACE_PICTURE = ".drift.jsonl", ".surface.json", ".surface.png"  # of a trial
EARLIER = ".earlier-"  # and a number, in names of a trial's files that were moved aside
CHECKPOINTS, FIGURES, TRACKED = "checkpoints", "figures", "tracked"
TUNING = "tuning"  # the folder of the runs that cells are chosen by

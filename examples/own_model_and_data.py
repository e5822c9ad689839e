"""Your own models on your own files: a table by hospital, images by camera. Runs in seconds."""

import csv
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import undrift as ud


def make_up_files(folder: Path) -> None:
    """Stands in for what you have: patients.csv, photographs.csv and the images it lists."""
    rng = np.random.default_rng(0)
    with (folder / "patients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", "age", "pressure", "smoker", "goes"])
        for hospital, mean_age in (("east", 35), ("north", 50), ("south", 65), ("west", 75)):
            for _ in range(150):
                age, pressure = rng.normal(mean_age, 10), rng.normal(120, 15)
                smoker = rng.random() < 0.3
                risk = (age - 55) / 10 + (pressure - 120) / 15 + 2 * smoker + rng.normal(0, 0.3)
                goes = "home" if risk < 0 else "to a ward" if risk < 2 else "to intensive care"
                smokes = "yes" if smoker else "no"
                rows.writerow([hospital, f"{age:.0f}", f"{pressure:.0f}", smokes, goes])
    with (folder / "photographs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "camera", "shows"])
        for i in range(600):
            camera, shows = int(rng.integers(6)), int(rng.integers(3))
            wave = 40 * np.sin(np.arange(16) * 2 + rng.uniform(0, 6))
            pattern = (wave[:, None, None], wave[None, :, None], np.zeros((1, 1, 1)))[shows]
            tint = 80 + 15 * np.array([camera, 5 - camera, 3])  # every camera has its colours
            pixels = tint + pattern + rng.normal(0, 40, (16, 16, 3))
            name = f"{i:03d}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
            rows.writerow([name, f"camera {camera}", ("rows", "columns", "nothing")[shows]])


def train(model: nn.Module, clients: ud.Clients, lr: float) -> ud.Record:
    run = ud.simulate(
        ud.FedAvg(lr=lr),
        model,
        clients,
        loss=nn.functional.cross_entropy,
        work=ud.Epochs(2),
        batch_size=20,
        rounds=12,
        evaluation=ud.EvaluationOptions(every=4),
        seed=0,
    )
    for record in run:
        if record.accuracy is not None:
            print(record)
    return record


class Risk(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, 16)
        self.classifier = nn.Linear(16, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.tanh(self.hidden(inputs)))


class Pattern(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(3, 8, 5)
        self.classifier = nn.Linear(8, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.relu(self.filters(inputs)).amax((2, 3)))


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as temporary:
    files = Path(temporary)
    make_up_files(files)

    # A table: one client for each hospital, all other columns become features.
    table = ud.data.read_table(files / "patients.csv", target="goes", client="hospital")
    patients = ud.Dataset.of(table, name="patients")
    print(patients, patients.client_names)
    hospitals = patients.split("natural")
    table_record = train(Risk(*patients.shape, patients.classes), hospitals, lr=0.3)

    # Images in a folder, listed in a table: one client for each camera, cropped and mirrored anew
    # whenever they are drawn. `read_image_folder` reads train/<class>/... without a table.
    listed = ud.data.read_image_table(
        files / "photographs.csv", image="file", target="shows", client="camera"
    )
    seen = ud.data.Images((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=2, flip=True)
    photographs = ud.Dataset.of(listed, name="photographs", prepare=seen)
    print(photographs, photographs.client_names)
    cameras = photographs.split("natural")
    image_record = train(Pattern(photographs.classes), cameras, lr=0.2)

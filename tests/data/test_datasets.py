"""Data sets by name: found, read, cached, downloaded, dealt to clients and trained on."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import undrift as ud
from tests.data.mnist import write_mnist
from tests.support.system import SHARED
from undrift.data import Dataset, Images, Samples, Stored, Tokens, cache, datasets, places
from undrift.data.fetch import Remote
from undrift.data.remotes import REMOTES
from undrift.files import part_of, user_cache

pytestmark = pytest.mark.usefixtures("empty_machine")


def test_what_load_returns(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    data = ud.data.load("mnist", data_dir=tmp_path)
    inputs, targets = data.train
    assert inputs.shape == (20, 1, 28, 28)
    assert inputs.dtype == torch.float32
    assert inputs.min() >= 0
    assert 0.9 < inputs.max() <= 1
    assert targets.tolist() == [*range(10), *range(10)]
    assert data.test[0].shape == (10, 1, 28, 28)
    assert (data.classes, data.shape, data.client_ids) == (10, (1, 28, 28), None)
    assert data.stored_train[0].dtype == torch.uint8  # what `split` keeps
    assert "20 training and 10 test samples" in repr(data)


PLACES: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, Path]]] = {
    "data_dir": lambda at, _: {"write": at / "mnist", "data_dir": at},
    "the folder itself": lambda at, _: {"write": at / "mine", "data_dir": at / "mine"},
    "torchvision": lambda at, _: {"write": at / "MNIST" / "raw", "data_dir": at},
    "environment": lambda at, patch: (
        patch.setenv("UNDRIFT_DATA", str(at)) or {"write": at / "mnist"}
    ),
    "earlier downloads": lambda at, _: {"write": user_cache() / "data" / "mnist"},
    "beside a checkout": lambda at, patch: (
        patch.setattr(places, "CHECKOUT", at / "checkout")
        or {"write": at / "shared" / "data" / "mnist"}
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_where_it_looks(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    at = PLACES[place](tmp_path, monkeypatch)
    write_mnist(at["write"])
    assert len(ud.data.load("mnist", at.get("data_dir")).train[1]) == 20


def test_debians_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "DEBIAN", tmp_path / "package")
    write_mnist(tmp_path / "package" / "fashion-mnist")
    assert len(ud.data.load("fashion-mnist").train[1]) == 20


def test_the_nearest_place_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "a" / "mnist", seed=1)
    write_mnist(tmp_path / "b" / "mnist", seed=2)
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "b"))
    given, named = ud.data.load("mnist", tmp_path / "a"), ud.data.load("mnist")
    assert not torch.equal(given.train[0], named.train[0])
    assert datasets.find("mnist", tmp_path / "a") == tmp_path / "a" / "mnist"


def test_a_folder_that_was_named_is_not_passed_over_for_another_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "elsewhere" / "mnist")
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "elsewhere"))
    mine = tmp_path / "mine"
    write_mnist(mine)
    damaged = mine / "train-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with pytest.raises(ud.DataError, match="mine/train-images"):
        ud.data.load("mnist", mine)


def test_a_folder_named_after_another_data_set_is_not_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    assert datasets.find("fashion-mnist", tmp_path / "mnist") is None
    assert datasets.find("mnist", tmp_path / "mnist") == tmp_path / "mnist"


def test_what_was_begun_by_hand_is_named_and_what_was_downloaded_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: dict[str, bytes]
) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "elsewhere"))
    for folder in ("femnist/train", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ud.DataError, match="femnist"):
        ud.data.load("femnist", tmp_path)
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    assert len(ud.data.load("mnist", tmp_path).train[1]) == 20


def test_cifar100_as_its_python_folder(tmp_path: Path) -> None:
    for name in ("train", "test", "meta"):
        (tmp_path / name).touch()
    assert datasets.find("cifar100", tmp_path) == tmp_path


def test_the_second_time_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    first = ud.data.load("mnist", tmp_path)

    def never(folder: Path) -> Stored:
        raise AssertionError("read again")

    about = datasets.PUBLISHED["mnist"]
    monkeypatch.setitem(datasets.PUBLISHED, "mnist", datasets.Published(never, about.place))
    second = ud.data.load("mnist", tmp_path)
    assert torch.equal(first.stored_train[0], second.stored_train[0])
    write_mnist(tmp_path / "mnist", seed=9)  # other content: read anew
    os.utime(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", (0, 0))
    with pytest.raises(AssertionError, match="read again"):
        ud.data.load("mnist", tmp_path)


def _mark(kept: Path) -> str:
    with safe_open(kept, framework="pt") as file:
        return str(file.metadata()["fingerprint"])


def test_a_damaged_cache_is_read_anew(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    first = ud.data.load("mnist", tmp_path)
    (kept,) = (user_cache() / "parsed").iterdir()
    content = kept.read_bytes()
    foreign = {"x": torch.zeros(1)}
    save_file(foreign, kept.with_suffix(".other"), metadata={"fingerprint": _mark(kept)})
    content_of_foreign = kept.with_suffix(".other").read_bytes()
    kept.with_suffix(".other").unlink()
    for broken in (
        content_of_foreign,
        b"",
        content[:40],
        content[: len(content) // 2],
        b"\xff" * 100,
    ):
        kept.unlink()  # a mapped file must not be truncated in place
        kept.write_bytes(broken)
        again = ud.data.load("mnist", tmp_path)
        assert torch.equal(first.stored_train[0], again.stored_train[0])


def test_a_flipped_byte_of_the_cache_is_noticed(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    first = ud.data.load("mnist", tmp_path)
    (kept,) = (user_cache() / "parsed").iterdir()
    content = kept.read_bytes()
    for place in (-1, -len(content) // 3, len(content) // 2, content.index(b'"classes"') + 12):
        flipped = bytearray(content)
        flipped[place] ^= 1
        kept.unlink()  # a mapped file must not be changed in place
        kept.write_bytes(flipped)
        again = ud.data.load("mnist", tmp_path)
        assert torch.equal(first.stored_train[0], again.stored_train[0])
        assert torch.equal(first.stored_test[0], again.stored_test[0])
        assert again.classes == first.classes
        assert kept.read_bytes()[-1000:] == content[-1000:]


def test_a_failed_read_leaves_no_cache(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ud.DataError, match=r"train-images-idx3-ubyte.gz needs .*, got .*; "):
        ud.data.load("mnist", tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept"):
        data = ud.data.load("mnist", tmp_path)
    assert len(data.train[1]) == 20


def test_everything_a_reader_returns_survives_the_cache(tmp_path: Path) -> None:
    owners = np.array([0, 1, 1])
    train = Samples(np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32), np.array([0, 1, 1]), owners)
    test = Samples(np.zeros((1, 2), dtype=np.int32), np.array([1]), np.array([0]))
    stored = Stored(train, test, 2, ("no", "yes"), ("Ann", "Bö"), ("", "a"))
    cache.write(tmp_path / "c.safetensors", "mark", stored)
    again = cache.read(tmp_path / "c.safetensors", "mark")
    assert again is not None
    for which in ("train", "test"):
        before, after = getattr(stored, which), getattr(again, which)
        for field in ("inputs", "targets", "owners"):
            assert np.array_equal(getattr(before, field), getattr(after, field))
            assert getattr(before, field).dtype == getattr(after, field).dtype
    for field in ("classes", "labels", "names", "vocabulary"):
        assert getattr(stored, field) == getattr(again, field)
    assert cache.read(tmp_path / "c.safetensors", "other mark") is None


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A server on loopback that has MNIST; files can be tampered with before a download."""
    files = write_mnist(tmp_path / "origin")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    served = dict(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.get(self.path[1:])
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    here = f"http://127.0.0.1:{server.server_address[1]}"
    remotes = tuple(
        Remote((f"{here}/{name}",), name, len(files[name]), f"sha256:{sums[name]}")
        for name in files
    )
    monkeypatch.setitem(REMOTES, "mnist", remotes)
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_nowhere_is_downloaded_checked_and_kept(
    mirror: dict[str, bytes], tmp_path: Path
) -> None:
    data = ud.data.load("mnist")
    assert len(data.train[1]) == 20
    assert datasets.find("mnist") == (tmp_path / "cache" / "data" / "mnist").resolve()
    mirror.clear()  # the second time needs no network
    assert torch.equal(ud.data.load("mnist").stored_train[0], data.stored_train[0])


def test_an_unfinished_download_does_not_pass_for_the_data_set(
    mirror: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "data" / "mnist"
    folder.mkdir(parents=True)
    part_of(folder / "train-images-idx3-ubyte.gz").write_bytes(b"half")
    assert datasets.find("mnist") is None
    assert len(ud.data.load("mnist").train[1]) == 20


def test_a_download_goes_where_the_user_says(mirror: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    ud.data.load("mnist", tmp_path / "mine")
    assert len(list((tmp_path / "mine" / "mnist").iterdir())) == 4


@pytest.mark.parametrize("how", ["tampered", "truncated", "missing"])
def test_a_bad_download_is_refused_and_a_good_one_goes_on_from_there(
    how: str, mirror: dict[str, bytes], tmp_path: Path
) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    good = mirror[name]
    if how == "missing":
        del mirror[name]
    else:
        mirror[name] = good[:-4] if how == "truncated" else good[:-1] + bytes([good[-1] ^ 1])
    for _ in range(2):  # what did arrive must not pass for the data set
        with pytest.raises(ud.DataError, match=rf"{name} needs .*; "):
            ud.data.load("mnist")
    assert not list(tmp_path.rglob("*.part*"))
    assert not (tmp_path / "cache" / "parsed").exists()
    mirror[name] = good
    assert len(ud.data.load("mnist").train[1]) == 20


def test_a_download_that_fails_leaves_no_folder(mirror: dict[str, bytes], tmp_path: Path) -> None:
    mirror.clear()
    (tmp_path / "mine").mkdir()
    with pytest.raises(ud.DataError, match="404"):
        ud.data.load("mnist", tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("name", ["femnist", "celeba", "shakespeare"])
def test_what_cannot_be_downloaded_says_what_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(ud.DataError) as caught:
        ud.data.load(name)
    text = str(caught.value)
    assert str(tmp_path / "cache" / "data" / name) in text
    assert "put" in text
    assert "\n" not in text


def test_bad_names_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the nearest is 'fashion-mnist'"):
        ud.data.load("fashion_mnist")
    with pytest.raises(ValueError, match="a folder that exists"):
        ud.data.load("mnist", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="load needs name to be one of"):
        ud.data.load(None)  # type: ignore[arg-type]


def test_an_environment_that_names_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"\$UNDRIFT_DATA needs a folder that exists"):
        ud.data.load("mnist")


def small(owners: bool = True) -> Dataset:
    rng = np.random.default_rng(0)

    def part(count: int) -> Samples:
        images = rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
        return Samples(images, np.arange(count) % 4, np.arange(count) % 5 if owners else None)

    prepare = Images((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), crop=2, flip=True)
    stored = Stored(part(40), part(12), 4, names=tuple("abcde") if owners else ())
    return Dataset.of(stored, name="small", prepare=prepare)


def test_split_keeps_bytes_and_prepares_batches() -> None:
    data = small()
    clients = data.split("iid", 4)
    assert clients.inputs is data.stored_train[0]
    assert clients.prepare == data.prepare
    assert data.split("iid", 4, augment=False).prepare == Images((0.5,) * 3, (0.25,) * 3)
    assert [len(part) for part in np.split(clients.index, 4)] == [10] * 4


def test_split_by_nature_by_form_and_by_lists() -> None:
    data = small()
    assert [len(part) for part in (data.split("natural").of(i) for i in range(5))] == [8] * 5
    assert len(data.split("natural", 3)) == 3
    assert len(data.split("dirichlet:0.5", 4, seed=1)) == 4
    assert data.split([[0, 1], [2]]).sizes.tolist() == [2, 1]
    with pytest.raises(ValueError, match="natural clients"):
        small(owners=False).split("natural")
    with pytest.raises(ValueError, match="as many as parts"):
        data.split([[0]], 3)
    with pytest.raises(ValueError, match="number of clients"):
        data.split("iid")


def test_what_is_tested_on() -> None:
    data = small()  # of owners 0 to 4 in turn, train and test alike
    everything = data.split("iid", 4).test
    assert everything is data.stored_test
    some = data.split("natural", 2, seed=3)
    owners = {int(data.client_ids[some.of(i)[0]]) for i in range(2)}  # type: ignore[index]
    theirs = [i for i in range(12) if i % 5 in owners]
    assert some.test is not None
    assert torch.equal(some.test[0], data.stored_test[0][theirs])
    few = data.split("iid", 4, test_samples=5, seed=1).test
    again = data.split("dirichlet:1", 2, test_samples=5, seed=1).test
    assert few is not None
    assert again is not None
    assert len(few[1]) == 5
    assert torch.equal(few[0], again[0])
    strangers = replace(data, test_client_ids=np.full(12, 9))
    assert strangers.split("natural", 2).test is data.stored_test
    for bad in (0, 13, 1.5):
        with pytest.raises(ValueError, match=r"test_samples in 1\.\.\.12"):
            data.split("iid", 4, test_samples=bad)  # type: ignore[arg-type]


def test_a_cheap_version_deals_some_of_the_training_samples() -> None:
    data = small()
    some = data.split("iid", 3, train_samples=7, seed=1)
    again = data.split("dirichlet:5", 1, train_samples=7, seed=1)
    fewer = data.split("iid", 3, train_samples=4, seed=1)
    assert sorted(some.index) == sorted(again.index), "the seed alone draws"
    assert len(set(some.index)) == 7
    assert set(fewer.index) < set(some.index)
    assert set(data.split("iid", 3, train_samples=7, seed=2).index) != set(some.index)
    for i in range(3):  # each sample has its own target
        assert torch.equal(some.targets[some.of(i)], data.stored_train[1][some.of(i)])
    everything = data.split("iid", 3, train_samples=40, seed=1)
    assert sorted(everything.index) == list(range(40))
    assert some.test is data.stored_test


def test_a_cheap_version_keeps_natural_clients_and_validation() -> None:
    data = small()
    assert data.client_ids is not None
    some = data.split("natural", 2, train_samples=25, validation=0.4, seed=3)
    owners = [set(data.client_ids[some.of(i)]) for i in range(2)]
    assert all(len(each) == 1 for each in owners)
    theirs = [i for i in range(12) if i % 5 in set.union(*owners)]
    assert some.test is not None
    assert torch.equal(some.test[0], data.stored_test[0][theirs])
    assert some.validation is not None
    assert len(some.index) + len(some.validation[1]) <= 25


def test_bad_train_samples_are_refused() -> None:
    data = small()
    for bad in (0, 41, 1.5):
        with pytest.raises(ValueError, match=r"train_samples in 1\.\.\.40"):
            data.split("iid", 4, train_samples=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no train_samples beside index lists"):
        data.split([[0, 1], [2]], train_samples=2)


def test_unequal_arrays_are_refused() -> None:
    part = Samples(np.zeros((3, 2), dtype=np.float32), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="as many targets as inputs in its train part"):
        Dataset.of(Stored(part, part, 2), name="mine")


def test_the_pairs_can_be_trained_on_as_they_are() -> None:
    """Without `split`: floats and tokens go into `Clients` and a model directly."""
    data = small()
    clients = ud.Clients.split(*data.train, ud.data.iid(data.train[1], 4), test=data.test)
    model = ud.models.build("resnet20", shape=data.shape, classes=4)
    run = ud.simulate(
        ud.FedAvg(lr=0.1), model, clients, loss=nn.functional.cross_entropy, work=ud.Steps(1),
        batch_size=5, rounds=1,
    )  # fmt: skip
    assert next(run).accuracy is not None
    tokens = Dataset((torch.ones(4, 3).byte(), torch.arange(4)), (torch.ones(1, 3).byte(),
                     torch.zeros(1).long()), 4, prepare=Tokens())  # fmt: skip
    assert tokens.train[0].dtype == torch.int64


def real(name: str) -> Dataset:
    if not SHARED.is_dir():
        pytest.skip("the real data sets are not beside this checkout")
    return ud.data.load(name, SHARED)


REAL = {
    "mnist": (60_000, 10_000, (1, 28, 28), 10, 539),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 10, None),
    "a9a": (32_561, 16_281, (123,), 2, None),
    "femnist": (3_890, 451, (1, 28, 28), 62, 40),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str) -> None:
    train, test, shape, classes, natural = REAL[name]
    data = real(name)
    assert (len(data.train[1]), len(data.test[1])) == (train, test)
    assert (data.shape, data.classes) == (shape, classes)
    assert (None if data.client_ids is None else len(np.unique(data.client_ids))) == natural
    if isinstance(data.prepare, Images) and name != "femnist":
        seen = data.prepare(data.stored_train[0], torch.float32)
        assert abs(float(seen.mean())) < 2e-3
        assert abs(float(seen.std()) - 1) < 2e-3


@pytest.mark.long
def test_cifar10_loads_in_well_under_a_second_the_second_time() -> None:
    first = real("cifar10")
    start = time.perf_counter()
    second = real("cifar10")
    assert time.perf_counter() - start < 0.5
    assert torch.equal(first.stored_train[0], second.stored_train[0])
    seen = first.prepare(first.stored_train[0], torch.float32)  # type: ignore[misc]
    assert seen.mean((0, 2, 3)).abs().max() < 5e-3
    assert (seen.std((0, 2, 3)) - 1).abs().max() < 5e-3


@pytest.mark.long
@pytest.mark.parametrize("name", ["shakespeare", "imdb", "tiny-imagenet"])
def test_the_larger_sets_load(name: str) -> None:
    expected = {
        "shakespeare": ((80,), 80, 1129),
        "imdb": ((256,), 2, None),
        "tiny-imagenet": ((3, 64, 64), 200, None),
    }[name]
    data = real(name)
    natural = None if data.client_ids is None else len(np.unique(data.client_ids))
    assert (data.shape, data.classes, natural) == expected


def test_fashion_mnist_by_one_word_each() -> None:
    """The thesis's network on the thesis's data, half the labels each: it learns."""
    data = real("fashion-mnist")
    rng = np.random.default_rng(0)
    few = rng.choice(60_000, 2_000, replace=False)
    parts = [few[part] for part in ud.data.classes_per_client(data.stored_train[1][few], 10, 5)]
    torch.manual_seed(0)
    model = ud.models.build("cnn2", shape=data.shape, classes=data.classes, dropout=0.0)
    with warnings.catch_warnings():
        run = ud.simulate(
            ud.FedaGrac(lr=0.05), model, data.split(parts), loss=nn.functional.cross_entropy,
            work=ud.GaussianSteps(8, 4), batch_size=20, rounds=5,
            evaluation=ud.EvaluationOptions(every=5),
        )  # fmt: skip
        *_, last = run
    assert last.accuracy is not None
    assert last.accuracy > 0.4

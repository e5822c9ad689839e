"""An experiment as object, TOML and `--set`: round trips, refusals in one sentence, schema."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from undrift.algorithms.compressed import Compressed
from undrift.algorithms.fedavg import FedAvg
from undrift.cli.init import experiment_template
from undrift.comm.codecs import QSGD, ScaledSign, TopK
from undrift.config.experiment import Experiment, Method, from_text, parse_changes
from undrift.config.hyperparameters import METHODS, build, method_class, without_none
from undrift.config.schema import json_schema
from undrift.core import AllReduce, Federated, Gossip
from undrift.optim.rules import Momentum, Rule
from undrift.optim.schedules import Schedule, exponential, piecewise, staircase
from undrift.runs.build import build_run, resolve_experiment

BASE: dict[str, Any] = {"methods": [{"name": "fedspeed"}]}
SMALL: dict[str, Any] = {
    "data": {"clients": 4, "partition": "iid", "test_samples": 50},
    "training": {"rounds": 2, "work": "steps:1", "batch_size": 10},
}
FAMILY = {"fedspeed": Federated, "netfleet": Gossip, "marsit": AllReduce}
UNEVEN = {"partition": "quantity:0.5"}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


def numbers(default: float) -> st.SearchStrategy[Any]:
    near = st.sampled_from([default, default / 2, default * 1.25, 0.01, 1.0])
    schedules = st.one_of(
        near.map(lambda x: exponential(x, 0.5).text),
        near.map(lambda x: staircase(x, 0.5, 2).text),
        near.map(lambda x: piecewise(x, {1: x, 3: x}).text),
    )
    return near | near.map(str) | schedules


@st.composite
def methods(draw: st.DrawFn, names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    name = draw(st.sampled_from(names))
    cls, made = METHODS[name], {"name": name}
    hints = get_type_hints(cls)
    for field in fields(cls):
        kind, optional = without_none(hints[field.name])
        default = 0.1 if field.default in (MISSING, None) else field.default
        values: st.SearchStrategy[Any]
        if kind is bool:
            values = st.booleans()
        elif kind is float:
            values = numbers(default)
        elif kind is int:
            values = st.integers(1, 5)
        elif kind is Rule:
            values = st.sampled_from(["sgd", "momentum:0.5", "momentum:0.9:nesterov", "adam"])
        else:
            values = st.sampled_from(get_args(kind))
        values = values | st.just("none") if optional else values
        if draw(st.booleans()):
            made[field.name] = draw(values)
    if draw(st.booleans()):
        made["label"] = draw(TEXTS.filter(bool))
    try:
        Method(**made)
    except ValueError:  # values that do not go together
        assume(False)
    return made


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    chosen = draw(st.lists(methods(), min_size=1, max_size=3))
    titles = [method.get("label") or METHODS[method["name"]].__name__ for method in chosen]
    assume(len(set(titles)) == len(titles))
    values: dict[str, Any] = {
        "title": draw(TEXTS),
        "seeds": draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True)),
        "methods": chosen,
        "data": {
            "clients": draw(st.none() | st.integers(1, 50)),
            "partition": draw(st.sampled_from(["iid", "dirichlet:0.3", "shards:2"])),
            "folder": draw(st.none() | st.sampled_from([Path("a b"), Path("dätå")])),
            "augment": draw(st.booleans()),
        },
        "training": {
            "rounds": draw(st.integers(1, 10**6)),
            "work": draw(st.sampled_from([None, "steps:3", "epochs:0.5", "gaussian:20:100"])),
            "weighting": draw(st.sampled_from([None, "size", "uniform"])),
            "clip": draw(st.floats(0, 1e300)),
        },
        "evaluation": {"target": draw(st.lists(st.floats(0.01, 1), min_size=1, max_size=3))},
        "engine": {"save_models": draw(st.none() | st.booleans())},
        "sweep": {
            "grid": draw(
                st.dictionaries(
                    st.sampled_from(["method.lr", "training.clip"]),
                    st.lists(st.floats(0.01, 1), min_size=1, max_size=3)
                    | st.just({"low": 0.1, "high": 1.0, "log": True}),
                )
            ),
            "together": draw(
                st.sampled_from(
                    [[], [{"training.rounds": [1, 2], "training.work": ["epochs:2", "epochs:1"]}]]
                )
            ),
        },
    }
    if any(issubclass(METHODS[m["name"]], Federated) for m in chosen):
        shares = st.floats(0.01, 1.0) | st.integers(1, 9)
        values["training"]["participation"] = draw(st.none() | shares)
    return Experiment.of(values)


class TestRoundTrip:
    @given(experiments())
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def test_toml_gives_the_same_object(self, experiment: Experiment) -> None:
        again = Experiment.of(tomllib.loads(experiment.to_toml()))
        assert again == experiment
        assert [m.build() for m in again.methods] == [m.build() for m in experiment.methods]

    @given(experiments())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_every_value_can_be_set_from_the_command_line(self, experiment: Experiment) -> None:
        """A bare experiment of the same methods becomes the other one by `--set`."""
        import tomli_w

        values = experiment.values()
        texts = []
        for section in ("data", "training", "fleet", "evaluation", "engine"):
            for name, value in values.get(section, {}).items():
                said = tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
                texts.append(f"{section}.{name}={said}")
        texts.append(tomli_w.dumps({"title": values["title"]}).strip())
        bare = Experiment.of({key: values[key] for key in ("methods", "seeds")})
        assert bare.changed(parse_changes(texts)) == experiment.model_copy(
            update={"sweep": bare.sweep}
        )

    @given(TEXTS, TEXTS.filter(bool))
    def test_any_text_survives(self, title: str, label: str) -> None:
        experiment = Experiment.of(
            {"title": title, "methods": [{"name": "fedavg", "label": label}]}
        )
        again = Experiment.of(tomllib.loads(experiment.to_toml()))
        assert (again.title, again.methods[0].label) == (title, label)

    @pytest.mark.parametrize("given_", [1, 1.0])
    def test_one_client_is_not_all_of_them(self, given_: float) -> None:
        experiment = Experiment.of({**BASE, "training": {"participation": given_}})
        for each in (experiment, Experiment.of(tomllib.loads(experiment.to_toml()))):
            assert type(each.training.participation) is type(given_)
        changed = Experiment.of(BASE).changed(parse_changes([f"training.participation={given_}"]))
        assert type(changed.training.participation) is type(given_)

    def test_python_objects_become_text(self) -> None:
        method = Method(name="FedAvg", lr=exponential(0.1, 0.5), rule=Momentum(0.9))
        assert method.name == "fedavg"
        assert method.settings == {"lr": "exponential(0.1, 0.5)", "rule": "momentum:0.9"}
        assert method.build().lr.at(2) == 0.025

    def test_a_schedule_without_text_is_refused(self) -> None:
        with pytest.raises(ValueError, match="schedules that can be written down"):
            Method(name="fedavg", lr=Schedule(lambda t: 0.1))

    def test_read_is_what_to_toml_wrote(self, tmp_path: Path) -> None:
        experiment = Experiment.of({**BASE, **SMALL, "title": 'a "quoted"\nline'})
        path = tmp_path / "experiment.toml"
        path.write_text(experiment.to_toml(), encoding="utf-8")
        assert Experiment.read(path) == experiment


class TestSet:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("5", 5),
            ("0.5", 0.5),
            ("true", True),
            ("[0, 1]", [0, 1]),
            ("epochs:5", "epochs:5"),
            ('"5"', "5"),
            ("none", None),
            ("exponential(0.1, 0.9)", "exponential(0.1, 0.9)"),
            ("1\nb = 2", "1\nb = 2"),
            ("a # b", "a # b"),
        ],
    )
    def test_text_as_a_value(self, text: str, value: Any) -> None:
        found = from_text(text)
        assert found == value
        assert type(found) is type(value)

    def test_all_methods_one_by_name_by_label_and_by_number(self) -> None:
        experiment = Experiment.of(
            {
                "methods": [
                    {"name": "fedavg"},
                    {"name": "fedavg", "label": "v1.5"},
                    {"name": "fedprox"},
                ]
            }
        )

        def rates(**changes: Any) -> list[Any]:
            changed = experiment.changed({k.replace("__", "."): v for k, v in changes.items()})
            return [method.settings.get("lr") for method in changed.methods]

        assert rates(method__lr=0.5) == [0.5, 0.5, 0.5]
        assert rates(FedProx__lr=0.5) == [None, None, 0.5]
        assert rates(fedavg__lr=0.5) == [0.5, 0.5, None]
        assert rates(**{"v1.5.lr": 0.5}) == [None, 0.5, None]
        assert rates(**{"methods[1].lr": 0.5}) == [None, 0.5, None]

    def test_none_says_nothing_or_is_a_value(self) -> None:
        experiment = Experiment.of(
            {
                "methods": [{"name": "ssdm", "scale": "max"}, {"name": "marsit", "period": 3}],
                "data": {"clients": 3},
            }
        )
        changes = ["data.clients=none", "ssdm.scale=none", "marsit.period=none"]
        changed = experiment.changed(parse_changes(changes))
        assert changed.data.clients is None
        assert changed.methods[0].build().scale == "none"
        assert changed.methods[1].build().period is None

    def test_the_original_is_left_alone(self) -> None:
        experiment = Experiment.of(BASE)
        experiment.changed({"training.rounds": 3, "method.lr": 0.3})
        assert experiment == Experiment.of(BASE)


class TestResolved:
    @given(experiments())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_once_is_enough(self, experiment: Experiment) -> None:
        once = resolve_experiment(experiment.changed({"data.folder": None}))
        assert resolve_experiment(once) == once
        assert Experiment.of(tomllib.loads(once.to_toml())) == once

    @pytest.mark.parametrize("name", FAMILY)
    def test_it_is_the_same_run(self, name: str) -> None:
        training = {"rounds": 2, "batch_size": 10}
        data = {"partition": "iid", "clients": 4}
        experiment = Experiment.of(
            {"methods": [{"name": name}], "data": data, "training": training}
        )
        said = Experiment.of(tomllib.loads(resolve_experiment(experiment).to_toml()))
        assert said != experiment
        assert sha256(said) == sha256(experiment)

    def test_a_sweep_of_the_work_is_not_overruled(self) -> None:
        sweep = {"grid": {"training.work": ["steps:1", "steps:2"]}}
        experiment = resolve_experiment(Experiment.of({**BASE, **SMALL, "sweep": sweep}))
        assert experiment.methods[0].work is None

    def test_none_where_the_default_is_not(self, tmp_path: Path) -> None:
        own = own_method(tmp_path, "beta: float | None = 0.5")
        method = Method(name=own, beta="none").with_defaults()
        assert method.build().beta is None
        assert Method(name=own).with_defaults().build().beta == 0.5


def sha256(experiment: Experiment) -> str:
    run = build_run(experiment, experiment.methods[0], experiment.seeds[0])
    for _ in run:
        pass
    return run.model_sha256


def own_method(folder: Path, *lines: str) -> str:
    """A file with FedAvg's heir and more fields; as an experiment names it."""
    path = folder / "own.py"
    body = "".join(f"    {line}\n" for line in lines) or "    pass\n"
    path.write_text(
        "from dataclasses import dataclass\nfrom undrift import FedAvg\n\n\n"
        f"@dataclass(frozen=True)\nclass Heavy(FedAvg):\n{body}"
    )
    return f"{path}:Heavy"


def with_method(**given_: Any) -> dict[str, Any]:
    return {"methods": [{"name": "fedspeed", **given_}]}


def of(name: str, **given_: Any) -> dict[str, Any]:
    return {"methods": [{"name": name, **given_}]}


def section(part: str, /, **given_: Any) -> dict[str, Any]:
    return {**BASE, part: given_}


def swept(**tables: Any) -> dict[str, Any]:
    return {**BASE, "sweep": tables}


NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "text": (section("training", rounds="ten"), "training.rounds needs a whole number, got 'ten'."),
    "quotes": (section("training", rounds="10"), "a whole number, got '10'; leave the quotes out."),
    "truth": (section("training", rounds=True), "training.rounds needs a whole number, got True."),
    "fraction": (section("training", rounds=1.5), "training.rounds needs a whole number, got 1.5."),
    "no rounds": (section("training", rounds=0), "training.rounds needs a number >= 1, got 0."),
    "not finite": (section("training", clip=NAN), "training.clip needs a finite number, got nan."),
    "infinite": (section("training", clip=INF), "training.clip needs a finite number, got inf."),
    "no table": ({**BASE, "training": 3}, "training needs a table, got 3."),
    "key": (section("training", roundz=1), "training has no 'roundz'; the nearest is 'rounds'; it"),
    "section": (
        {**BASE, "trainin": {}},
        "An experiment has no 'trainin'; the nearest is 'training'",
    ),
    "enum": (
        section("engine", mode="stakced"),
        "engine.mode needs one of auto, loop, threads, stacked, got",
    ),
    "enum, nearest": (section("training", weighting="sise"), "; the nearest is 'size'."),
    "share": (
        section("training", participation=1.5),
        "participation needs a fraction in (0, 1] such",
    ),
    "share, text": (
        section("training", participation="x"),
        "training.participation needs a number",
    ),
    "share, truth": (section("training", participation=True), "needs a number, got True."),
    "share, nan": (section("training", participation=NAN), "or a count such as 10, got nan."),
    "share, zero": (section("training", participation=0), "or a count such as 10, got 0."),
    "work": (section("training", work="step:3"), "training.work needs its first word to be one of"),
    "work, number": (
        section("training", work=3),
        "training.work needs text, got 3; put it in quotes.",
    ),
    "data": (section("data", name="digit"), "got 'digit'; the nearest is 'digits'."),
    "partition": (
        section("data", partition="dirichlt:1"),
        "data.partition needs its name to be one",
    ),
    "alpha": (section("data", partition="dirichlet:-1"), "data.partition needs a form such as"),
    "clients": (section("data", clients=0), "data.clients needs a number >= 1, got 0."),
    "folder": (section("data", folder=3), "data.folder needs a path, got 3."),
    "bool": (section("data", augment="true"), "needs true or false, got 'true'; leave the quotes"),
    "availability": (section("data", availability="resampled:x"), "data.availability needs a form"),
    "model": (section("model", name="mlpp"), "model.name needs one of logistic, mlp"),
    "model, key": (
        section("model", hiden=3),
        "The model mlp has no 'hiden'; the nearest is 'hidden'",
    ),
    "model, list": (section("model", hidden=[3]), "model.hidden needs a number, or text without"),
    "devices": (section("fleet", slowdown="jitter:0.3"), "fleet.slowdown needs the kind of"),
    "slowdown": (
        section("fleet", kind="phone", slowdown="jiter:1"),
        "fleet.slowdown needs its",
    ),
    "failures": (
        section("fleet", kind="phone", failures=1.0),
        "fleet.failures needs a number < 1",
    ),
    "period": (section("fleet", kind="phone", trace_period=3.0), "needs a trace beside it"),
    "no target": (section("evaluation", target=[]), "evaluation.target needs a list with a value"),
    "target": (section("evaluation", target=[0.5, 2]), "evaluation.target[1] needs a number <= 1"),
    "every": (section("evaluation", every=0), "evaluation.every needs a number >= 1, got 0."),
    "no seeds": ({**BASE, "seeds": []}, "seeds needs different seeds, at least one, got []."),
    "seeds": ({**BASE, "seeds": [1, 1]}, "seeds needs different seeds, at least one, got [1, 1]."),
    "seed": ({**BASE, "seeds": 3}, "seeds needs a list, got 3."),
    "seed, sign": ({**BASE, "seeds": [-1]}, "seeds[0] needs a number >= 0, got -1."),
    "title": ({**BASE, "title": 3}, "title needs text, got 3; put it in quotes."),
    "nothing": ({}, "methods needs to be given, got nothing"),
    "no methods": ({"methods": []}, "methods needs at least one method, got []."),
    "one bracket": ({"methods": {"name": "fedavg"}}, "methods needs a list, got"),
    "no names": ({"methods": ["fedavg"]}, "methods[0] needs a table, got 'fedavg'."),
    "nameless": ({"methods": [{}]}, "methods[0].name needs to be given, got nothing"),
    "method": (of("fedsped"), "got 'fedsped'; the nearest is 'fedspeed'."),
    "twice": ({"methods": [{"name": "fedavg"}] * 2}, "methods needs different names, got 'FedAvg'"),
    "labels": (
        {"methods": [{"name": n, "label": "a"} for n in ("fedavg", "fedprox")]},
        "methods needs different names, got 'a'; give them labels",
    ),
    "hyper": (with_method(lamm=3), "FedSpeed has no 'lamm'; the nearest is 'lam'; it has lr, lam"),
    "range": (with_method(lam=-1), "FedSpeed needs lam > 0, a finite number, got -1.0."),
    "number": (with_method(lam="x"), "FedSpeed's lam needs a number or a schedule such as"),
    "list": (with_method(lam=[1]), "FedSpeed's lam needs a number or a schedule such as"),
    "truth for number": (with_method(lam=True), "FedSpeed's lam needs a number or a schedule"),
    "number for truth": (with_method(normalise=1), "normalise needs true or false, got 1."),
    "choice": (with_method(average="alll"), "needs one of all, participants, got 'alll'; the"),
    "schedule": (with_method(lr="exponential(0.1)"), "FedSpeed's lr needs a number or a schedule"),
    "label": (with_method(label=""), "methods[0].label needs text that is not empty, got ''."),
    "own work": (with_method(work="x"), "methods[0].work needs its first word to be one of"),
    "accelerate": (with_method(accelerate=2.0), "methods[0].accelerate needs a number in [0, 1)"),
    "codec": (with_method(codec="qsg:8"), "methods[0].codec needs qsgd:BITS, qsgd:BITS:BUCKET"),
    "codec, bits": (with_method(codec="qsgd:x"), "methods[0].codec needs qsgd:BITS"),
    "codec, bucket": (with_method(codec="qsgd:8:x"), "methods[0].codec needs qsgd:BITS"),
    "codec, no bucket": (with_method(codec="qsgd:8:0"), "bucket >= 1"),
    "feedback": (with_method(error_feedback=True), "error_feedback needs a codec beside it"),
    "rule": (of("fedavg", rule="momentm:0.9"), "FedAvg's rule needs"),
    "rule, number": (
        of("fedavg", rule=3),
        "FedAvg's rule needs a rule such as momentum:0.9, got 3.",
    ),
    "whole": (of("marsit", period=1.5), "Marsit's period needs a whole number, got 1.5."),
    "whole, text": (of("marsit", period="x"), "Marsit's period needs a whole number, got 'x'."),
    "peers": (of("netfleet", codec="qsgd:8"), "Compressed needs a method with a server"),
    "module": (of("no_such_module:A"), "needs an importable module, got 'no_such_module'"),
    "class": (of("undrift.algorithms:FedAv"), "has no 'FedAv'; the nearest is 'FedAvg'."),
    "no method": (of("undrift.core:Cohort"), "A method needs a dataclass derived from Federated"),
    "no file": (of("no/such.py:A"), "A method needs a file that is there, got"),
    "topology": (section("training", topology="ring"), "training.topology needs a gossip method"),
    "allreduce": (section("training", allreduce="ring"), "training.allreduce needs an all-reduce"),
    "participation": (
        {**of("netfleet"), "training": {"participation": 0.5}},
        "training.participation needs a method with a server, got NetFleet; leave it out.",
    ),
    "on_bad": (
        {**of("dsgd"), "training": {"on_bad": "drop"}},
        "training.on_bad needs a method with a server, got DSGD; leave it out.",
    ),
    "swept field": (
        swept(grid={"training.roundz": [1]}),
        "training has no 'roundz'; the nearest is",
    ),
    "swept hyper": (
        swept(grid={"fedspeed.lamm": [1]}),
        "FedSpeed has no 'lamm'; the nearest is 'lam'",
    ),
    "swept method": (swept(grid={"fedsped.lam": [1]}), "got 'fedsped'; the nearest is 'fedspeed';"),
    "no section": (
        swept(grid={"rounds": [1]}),
        "SECTION.NAME, got 'rounds'; it is training.rounds",
    ),
    "no values": (swept(grid={"method.lr": []}), "sweep.grid.method.lr needs at least one value"),
    "no list": (
        swept(grid={"method.lr": 3}),
        "sweep.grid.method.lr needs a list or a table, got 3.",
    ),
    "no end": (swept(grid={"method.lr": {"low": 1, "hig": 2}}), "no 'hig'; the nearest is 'high'"),
    "empty": (
        swept(grid={"method.lr": {"low": 2, "high": 1}}),
        "two numbers, low < high, got [2, 1]",
    ),
    "log": (
        swept(grid={"method.lr": {"low": 0, "high": 1, "log": True}}),
        "low > 0 with log = true",
    ),
    "rows": (swept(together=[{"training.rounds": [1, 2], "method.lr": [1]}]), "lists of the same"),
    "no quotes": (
        swept(grid={"fedavg": {"lr": [0.1]}}),
        'the names of fields in quotes, got fedavg.lr without; write "fedavg.lr" = ...',
    ),
    "no quotes, together": (
        swept(together=[{"fedavg": {"lr": [0.1]}}]),
        "the names of fields in quotes, got fedavg.lr without",
    ),
    "no rows": (swept(together=[{}]), "sweep.together needs lists of the same length"),
    "two places": (
        swept(grid={"method.lr": [1]}, together=[{"method.lr": [1]}]),
        "sweep needs every field once, got 'method.lr'",
    ),
    "null": (swept(grid={"marsit.period": [None]}), "sweep needs values that TOML has, got none"),
    "several": (
        {**BASE, "training": {"rounds": "x", "clip": -1}, "data": {"clients": "y"}},
        "data.clients needs a whole number, got 'y' (2 more fields do not fit).",
    ),
}


CODECS = {
    "qsgd": QSGD(bits=8),
    "qsgd:4": QSGD(bits=4),
    "qsgd:8:512": QSGD(bits=8, bucket=512),
    "qsgd:8:tensor": QSGD(bits=8, bucket="tensor"),
    "qsgd::16": QSGD(bits=8, bucket=16),
    "scaled-sign": ScaledSign(),
    "top-k:0.1": TopK(0.1),
}


@pytest.mark.parametrize("text", CODECS)
def test_a_codec_is_named_by_its_text(text: str) -> None:
    method = Experiment.of({"methods": [{"name": "fedavg", "codec": text}]}).methods[0]
    assert method.build() == Compressed(FedAvg(lr=method.build().inner.lr), CODECS[text])


class TestRefused:
    @pytest.mark.parametrize("case", REFUSED)
    def test_in_one_sentence(self, case: str) -> None:
        values, expected = REFUSED[case]
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            Experiment.of(values)
        said = str(caught.value)
        assert expected in said
        assert_one_sentence(said)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("training.roundz=3", "training has no 'roundz'; the nearest is 'rounds'"),
            ("fedspeed.lamm=none", "FedSpeed has no 'lamm'; the nearest is 'lam'"),
            ("training.rounds=many", "training.rounds needs a whole number, got 'many'."),
            ("lr=3", "A field needs SECTION.NAME, got 'lr'"),
            ("sweep.grid=3", "needs a section or a method of the experiment before its dot"),
            ("=3", "--set needs SECTION.NAME=VALUE, got '=3'."),
            ("training.rounds", "--set needs SECTION.NAME=VALUE, got 'training.rounds'."),
        ],
    )
    def test_on_the_command_line(self, text: str, expected: str) -> None:
        with pytest.raises(ValueError, match=re.escape(expected)) as caught:
            Experiment.of(BASE).changed(parse_changes([text]))
        assert_one_sentence(str(caught.value))

    def test_malformed_toml_with_line_and_column(self, tmp_path: Path) -> None:
        path = tmp_path / "e.toml"
        path.write_text("title = 'a'\nseeds = [0,\n1\nx")
        with pytest.raises(ValueError, match=r"needs to be TOML.*line 4, column 1") as caught:
            Experiment.read(path)
        assert_one_sentence(str(caught.value).removeprefix(str(path)))

    def test_not_utf_8(self, tmp_path: Path) -> None:
        path = tmp_path / "e.toml"
        path.write_bytes("title = 'é'".encode("latin-1"))
        with pytest.raises(
            ValueError, match="needs to be text in UTF-8, got byte 0xe9 at position 9"
        ):
            Experiment.read(path)

    def test_no_file_or_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"needs a file that is there, got '.*missing\.toml'"):
            Experiment.read(tmp_path / "missing.toml")
        with pytest.raises(ValueError, match="needs a file that is there, got the folder"):
            Experiment.read(tmp_path)

    def test_the_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "e.toml"
        path.write_text("[[methods]]\nname = 'fedavg'\n[training]\nrounds = 'ten'\n")
        with pytest.raises(ValueError, match=r"e\.toml: training\.rounds needs a whole number"):
            Experiment.read(path)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (
                {**of("netfleet"), "training": {"topology": "torus:2x4"}, "data": {"clients": 6}},
                "6",
            ),
            ({**of("marsit"), "training": {"allreduce": "torus:2x4"}, "data": {"clients": 6}}, "6"),
            ({**of("moon"), "model": {"name": "logistic"}}, "MOON"),
            (
                {**BASE, "training": {"work": "deadline:60:5"}},
                "Deadline needs the clients' devices",
            ),
            ({**BASE, "training": {"participation": 50}, "data": {"clients": 4}}, "50"),
            ({**BASE, "data": {"partition": "natural"}}, "natural"),
            ({**BASE, "data": {"clients": 10**6, "partition": "iid"}}, "1000000"),
            (
                {**of("netfleet"), "training": {"weighting": "size"}, "data": UNEVEN},
                "weigh the same",
            ),
        ],
        ids=["torus", "route", "moon", "deadline", "cohort", "natural", "crowd", "weights"],
    )
    def test_impossible_before_the_first_round(self, values: dict[str, Any], expected: str) -> None:
        experiment = Experiment.of(values)
        with pytest.raises(ValueError, match=expected):
            build_run(experiment, experiment.methods[0], 0)


def assert_one_sentence(said: str) -> None:
    assert said.endswith(".")
    assert "\n" not in said
    assert not re.search(r"[.!?] +[A-Z]", said), said
    assert " needs " in said or " has no " in said


class TestOwnMethods:
    def test_from_a_file_and_from_a_module(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = own_method(tmp_path, "extra: int = 3")
        assert method_class(own) is method_class(own)  # imported once
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
        (tmp_path / "own.py").rename(tmp_path / "own_module_of_a_test.py")
        for name in (own, "own_module_of_a_test:Heavy"):
            values = {**SMALL, "methods": [{"name": name, "lr": 0.2, "extra": 4}]}
            experiment = Experiment.of(values)
            assert experiment.methods[0].title == "Heavy"
            assert experiment.methods[0].build().extra == 4
            assert experiment.changed({f"{name}.extra": 5}).methods[0].build().extra == 5
            assert Experiment.of(tomllib.loads(experiment.to_toml())) == experiment
        assert len(sha256(experiment)) == 64

    def test_two_files_of_the_same_name(self, tmp_path: Path) -> None:
        names = []
        for folder, line in (("a", "extra: int = 1"), ("b", "extra: float = 2.5")):
            (tmp_path / folder).mkdir()
            names.append(own_method(tmp_path / folder, line))
        assert [build(method_class(name), {}).extra for name in names] == [1, 2.5]

    def test_a_value_without_default(self, tmp_path: Path) -> None:
        path = tmp_path / "own.py"
        path.write_text(
            "from dataclasses import dataclass\nfrom undrift import Federated\n\n\n"
            "@dataclass(frozen=True)\nclass Bare(Federated):\n    lr: float\n    mu: float\n"
        )
        with pytest.raises(ValueError, match="Bare needs mu, got nothing; give a value"):
            build(method_class(f"{path}:Bare"), {})

    def test_a_file_with_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.py"
        path.write_text("def (:\n")
        with pytest.raises(ValueError, match=r"needs an importable module, got '.*broken\.py'"):
            method_class(f"{path}:A")


class TestStarter:
    @pytest.mark.parametrize("name", METHODS)
    def test_it_reads_for_every_method(self, name: str) -> None:
        experiment = Experiment.of(tomllib.loads(experiment_template([name])))
        assert [method.name for method in experiment.methods] == [name]
        assert experiment.methods[0].with_defaults() == Method(name=name).with_defaults()

    @pytest.mark.parametrize(
        "names",
        [["fedavg", "fedspeed"], ["netfleet"], ["marsit"], ["fedavg", "dsgd", "psgd"]],
        ids=lambda names: "-".join(names),
    )
    def test_it_runs(self, names: list[str]) -> None:
        values = tomllib.loads(experiment_template(names))
        experiment = Experiment.of(values).changed({"training.rounds": 2})
        for method in experiment.methods:
            assert len(list(build_run(experiment, method, 0))) == 2

    @pytest.mark.parametrize("names", [["fedavg", "fedspeed"], ["marsit", "signsgd", "netfleet"]])
    def test_comments_show_the_defaults(self, names: list[str]) -> None:
        text = experiment_template(names)
        shown = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
        assert shown.count("\n#") < text.count("\n#") - 15
        said, bare = (Experiment.of(tomllib.loads(each)) for each in (shown, text))
        assert said.model_copy(update={"methods": []}) == bare.model_copy(update={"methods": []})
        assert [m.with_defaults() for m in said.methods] == [
            m.with_defaults() for m in bare.methods
        ]
        assert [m.with_defaults() for m in said.methods] == said.methods

    def test_every_field_is_in_it(self) -> None:
        text = experiment_template(["fedavg"])
        for part in ("data", "training", "fleet", "evaluation", "engine"):
            kind = Experiment.model_fields[part].annotation
            for name in kind.model_fields:  # type: ignore[union-attr]
                assert re.search(rf"^(# )?{name}( = |: not set)", text, re.MULTILINE), name

    def test_the_sweep_in_comments_can_be_used(self) -> None:
        head, _, tail = experiment_template(["fedavg"]).partition("# Values to try")
        sweep = re.sub(r"^# ", "", tail.partition("\n")[2], flags=re.MULTILINE)
        experiment = Experiment.of(tomllib.loads(head + sweep))
        assert experiment.sweep.paths == ["method.lr", "training.rounds", "training.work"]


ANNOTATIONS = {"title", "description", "default", "$schema", "$defs"}
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def is_of(kind: str, value: Any) -> bool:
    truth = isinstance(value, bool)
    return isinstance(value, TYPES[kind]) and (not truth or kind == "boolean")


class Checker:
    """As much of JSON Schema as is used; a keyword that it does not know is an error."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root

    def accepts(self, value: Any, schema: dict[str, Any] | None = None) -> bool:
        schema = self.root if schema is None else schema
        keywords = {key: told for key, told in schema.items() if key not in ANNOTATIONS}
        return all(self._holds(key, told, value, schema) for key, told in keywords.items())

    def _holds(self, key: str, told: Any, value: Any, schema: dict[str, Any]) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        checks = {
            "$ref": lambda: self.accepts(value, self.part(told)),
            "anyOf": lambda: any(self.accepts(value, each) for each in told),
            "type": lambda: any(
                is_of(k, value) for k in ([told] if isinstance(told, str) else told)
            ),
            "enum": lambda: value in told,
            "const": lambda: value == told,
            "required": lambda: not isinstance(value, dict) or all(name in value for name in told),
            "properties": lambda: all(
                self.accepts(value[name], each)
                for name, each in told.items()
                if isinstance(value, dict) and name in value
            ),
            "additionalProperties": lambda: all(
                told if isinstance(told, bool) else self.accepts(value[name], told)
                for name in (value if isinstance(value, dict) else ())
                if name not in schema.get("properties", {})
            ),
            "items": lambda: (
                not isinstance(value, list) or all(self.accepts(v, told) for v in value)
            ),
            "minItems": lambda: not isinstance(value, list) or len(value) >= told,
            "minLength": lambda: not isinstance(value, str) or len(value) >= told,
            "pattern": lambda: not isinstance(value, str) or re.search(told, value) is not None,
            "minimum": lambda: not number or value >= told,
            "maximum": lambda: not number or value <= told,
            "exclusiveMinimum": lambda: not number or value > told,
            "exclusiveMaximum": lambda: not number or value < told,
            "format": lambda: told == "path",
        }
        return bool(checks[key]())

    def part(self, reference: str) -> dict[str, Any]:
        place, _, name = reference.rpartition("/")
        assert place == "#/$defs"
        found: dict[str, Any] = self.root["$defs"][name]
        return found


def subschemas(schema: Any) -> list[dict[str, Any]]:
    """All of them, whether an example reaches them or not."""
    if not isinstance(schema, dict):
        return []
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    for key in ("properties", "$defs"):
        inner += schema.get(key, {}).values()
    return [schema, *(part for each in inner for part in subschemas(each))]


# What a schema cannot know: how fields go together, forms in text, ranges of a method's own.
BEYOND_A_SCHEMA = set(
    """
    infinite; share; share, nan; share, zero; work; partition; alpha;
    availability; model, key; model, list; devices; slowdown; period; no seeds; seeds; no
    methods; twice; labels; range; number; schedule; own work; accelerate; codec; codec,
    bits; codec, bucket; codec, no bucket; feedback; rule; whole, text; peers; module;
    class; no method; no file; topology;
    allreduce; participation; on_bad; swept field; swept hyper; swept method; no section; no values;
    empty; log; rows; no rows; two places; null
    """.replace("\n   ", "")
    .strip()
    .split("; ")
)


CHECKER = Checker(json_schema())


class TestSchema:
    def test_every_keyword_and_reference_is_known(self) -> None:
        for schema in subschemas(CHECKER.root):
            for key, told in schema.items():
                if key == "$ref":
                    CHECKER.part(told)
                elif key not in ANNOTATIONS:
                    CHECKER._holds(key, told, 0, schema)

    def test_it_is_json(self) -> None:
        assert json.loads(json.dumps(CHECKER.root, allow_nan=False)) == CHECKER.root

    @given(experiment=experiments())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_accepts_what_an_experiment_is(self, experiment: Experiment) -> None:
        assert CHECKER.accepts(experiment.values())

    @pytest.mark.parametrize("name", METHODS)
    def test_accepts_every_hyper_parameter(self, name: str) -> None:
        values = Experiment.of(
            {"methods": [Method(name=name).with_defaults().model_dump()]}
        ).values()
        assert CHECKER.accepts(values)
        values["methods"][0]["no_such"] = 1
        assert not CHECKER.accepts(values)

    @pytest.mark.parametrize("target", [0.5, [0.5, 0.9]])
    def test_accepts_one_target_or_several(self, target: Any) -> None:
        assert CHECKER.accepts(section("evaluation", target=target))

    @pytest.mark.parametrize("case", REFUSED)
    def test_refuses_what_it_can(self, case: str) -> None:
        assert CHECKER.accepts(REFUSED[case][0]) == (case in BEYOND_A_SCHEMA)

    def test_defaults_are_the_experiments(self) -> None:
        plain = Experiment.of(BASE).model_dump(mode="json")
        for name, schema in CHECKER.root["properties"].items():
            if "default" in schema:
                assert schema["default"] == plain[name]

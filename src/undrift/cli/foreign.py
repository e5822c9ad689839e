"""Options that other libraries have: the answer names the one that undrift has for it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_DEVICE = "the device that computes is --device, such as --device cuda:0"
_RULE = "a local optimiser is --rule, such as --rule momentum:0.9 or --rule adamw"
REMEDIES = {
    "--devices": f"simulated devices of the clients are --fleet, such as --fleet phone; {_DEVICE}",
    "--gpu": _DEVICE,
    "--gpus": _DEVICE,
    "--cuda": _DEVICE,
    "--learning-rate": "the learning rate is --lr, such as --lr 0.1",
    "--local-lr": "the clients' learning rate is --lr, such as --lr 0.1",
    "--local-epochs": "local epochs are --epochs, such as --epochs 5",
    "--num-epochs": "local epochs are --epochs, such as --epochs 5",
    "--local-steps": "local steps are --work, such as --work steps:10",
    "--steps": "local steps are --work, such as --work steps:10",
    "--num-rounds": "communication rounds are --rounds, such as --rounds 50",
    "--num-clients": "the number of clients is --clients, such as --clients 20",
    "--fraction": "the share of clients in a round is --participation, such as --participation 0.1",
    "--alpha": "a Dirichlet partition is --dirichlet, such as --dirichlet 0.3",
    "--dataset": "a data set is --data, such as --data mnist",
    "--client": "a table's column of clients is named beside its file: --data patients.csv:target="
    "died,client=site",
    "--batch": "samples of a step are --batch-size, such as --batch-size 20",
    "--optimizer": _RULE,
    "--optim": _RULE,
    "--momentum": _RULE,
    "--scheduler": "a schedule is a value of --lr, such as --lr 'cosine(0.1, 50)'",
    "--wd": "weight decay is --weight-decay, such as --weight-decay 0.001",
    "--num-workers": "trials run side by side with --jobs, clients with --processes",
}


class PlainFlags:
    """Shows flags in help without the type that typer has for them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, of which flags need no type, since they take no value."""
        parameters: list[Any] = list(super().get_params(ctx))  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(PlainFlags, TyperCommand):
    """Is a command whose help shows flags as such."""


class CommandGroup(PlainFlags, TyperGroup):
    """Is a group of commands whose help shows flags as such."""


class MethodCommand(Command):
    """Answers an option of another library with undrift's own; methods may have it themselves."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, or raise `ValueError` with the option that is meant."""
        own = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            name = word.partition("=")[0]
            if name in REMEDIES and name not in own:
                raise ValueError(f"{ctx.command_path} has no {name}; {REMEDIES[name]}.")
        return super().parse_args(ctx, args)

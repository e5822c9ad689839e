"""Every method at its defaults, and variants that take other paths through the code."""

from __future__ import annotations

import undrift as ud

DEFAULTS = [cls(lr=0.1) for cls in ud.ALGORITHMS]
VARIANTS = [
    ud.FedAvg(lr=0.1, rule=ud.Momentum(0.9)),
    ud.FedAvg(lr=0.01, rule=ud.AdamW(), keep_rule=True),
    ud.FedProx(lr=0.01, rule=ud.Adam()),
    ud.FedAvgM(lr=0.1, nesterov=True),
    ud.Scaffold(lr=0.1, option="I"),
    ud.FedSpeed(lr=0.1, average="participants", normalise=False),
    ud.FedSpeed(lr=0.1, ascent="data"),
    ud.FedSpeed(lr=0.1, relative=True),
    ud.FedSAM(lr=0.1, relative=True),
    ud.FedGamma(lr=0.1, normalise=False),
    ud.MoFedSAM(lr=0.1, relative=True),
    ud.FedaGrac(lr=0.1, scheme="reverse", local_reference="sent", nu_scope="participants"),
    ud.FedaGrac(lr=0.1, start="full"),
    ud.FedaGrac(lr=0.1, start="full", nu_scope="participants"),
    ud.FedADMM(lr=0.1, average="seen"),
    ud.DSGD(lr=0.1, form="atc"),
    ud.LDSGD(lr=0.1, form="atc", gossip=2),
    ud.GTSGD(lr=0.1, form="atc"),
    ud.PSGD(lr=0.01, rule=ud.Adam()),
    ud.SignSGD(lr=0.01, rule=ud.Momentum(0.9), code="gamma"),
    ud.EFSignSGD(lr=0.1, code="omega"),
    ud.SSDM(lr=0.01, scale="max", code="delta"),
    ud.SSDM(lr=0.1, server_lr=0.01, beta=0.0, rule=ud.Momentum(0.9), norm="inf"),
    ud.SSDM(lr=0.1, server_lr=0.01, scale="own"),
    ud.CascadingSSDM(lr=0.01, server_lr=0.001, beta=0.0, rule=ud.Adam(), norm="inf"),
    ud.Marsit(lr=0.1, server_lr=0.01, period=2, rule=ud.Momentum(0.9), decay=0.5),
]

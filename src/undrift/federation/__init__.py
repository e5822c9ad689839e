"""Training on data that stay at their sites: a centre, sites, and a transport between them."""

from undrift.federation.centre import Centre
from undrift.federation.columns import TableAgreement, TableSite, agree_columns
from undrift.federation.evaluation import SiteEvaluation, SiteScore
from undrift.federation.experiment import FederatedExperiment
from undrift.federation.site import Site
from undrift.federation.sockets import SiteServer, SocketTransport
from undrift.federation.transport import InProcess, SiteTransport

__all__ = [
    "Centre",
    "FederatedExperiment",
    "InProcess",
    "Site",
    "SiteEvaluation",
    "SiteScore",
    "SiteServer",
    "SiteTransport",
    "SocketTransport",
    "TableAgreement",
    "TableSite",
    "agree_columns",
]

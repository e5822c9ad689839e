"""Reports: a comparison as one HTML page, as tables, and as figures for screens and papers."""

from undrift.report.comparison import Comparison
from undrift.report.html import page, write
from undrift.report.paper import figures

__all__ = ["Comparison", "figures", "page", "write"]

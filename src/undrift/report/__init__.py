"""A comparison as one page that opens anywhere, and its figures for a paper."""

from undrift.report.comparison import Comparison
from undrift.report.html import page, write
from undrift.report.paper import figures

__all__ = ["Comparison", "figures", "page", "write"]

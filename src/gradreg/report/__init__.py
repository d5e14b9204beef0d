"""Tables, figures and the page, from records alone."""

from gradreg.report.figures import save_figures
from gradreg.report.page import render, write_report
from gradreg.report.tables import as_csv, as_data, as_latex, as_rich_table, as_text

__all__ = [
    "as_csv",
    "as_data",
    "as_latex",
    "as_rich_table",
    "as_text",
    "render",
    "save_figures",
    "write_report",
]

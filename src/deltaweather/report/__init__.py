"""One self-contained HTML page from a benchmark's outcomes: no network, no library, plots that answer."""

from .page import write_report as write_report
from .payload import report_payload as report_payload

"""One HTML page about one fit or several: it opens in any browser, offline, and asks nothing of the network."""

from nfk.report.content import Content, content_of_embedding, content_of_run
from nfk.report.writing import report, write_page, write_report

__all__ = ["Content", "content_of_embedding", "content_of_run", "report", "write_page", "write_report"]

"""One HTML page about one fit or several: it opens in any browser, offline, and asks nothing of the network."""

from nfk.report.content import Content, content_of_embedding
from nfk.report.writing import report, write_page

__all__ = ["Content", "content_of_embedding", "report", "write_page"]

"""`traceview serve`: the page from a local server, with every event at any zoom.

server.py     the HTTP server, on the loopback address behind a random token
answers.py    the answers to the page's requests, and the bounds of their parameters
"""

from traceview.serve.server import Server

__all__ = ["Server"]

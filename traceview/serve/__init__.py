"""`traceview serve`: the page from a local server, with every event at any zoom.

server.py     the HTTP server: on the loopback address, behind a random token
query.py      the parameters of a request and their bounds
answers.py    the answers: marks between two moments, a measure, the places of a name, what launched what
"""

from traceview.serve.server import Server

__all__ = ["Server"]

"""`traceview serve`: the page from a local server, with every event at any zoom.

server.py     who may ask, and where an answer comes from: loopback alone, behind a random token
answers.py    what is answered: marks between two moments, a measure, the places of a name, what launched what
"""

from traceview.serve.server import Server

__all__ = ["Server"]

"""`traceview mcp`: read-only tools for agents, on captures, over the Model Context Protocol.

captures.py   which files may be read, and the analyses that are kept
tools.py      the tools: each returns a part of the JSON of analyze, compare or whatif, cut to the size of an answer
server.py     the server on standard input and output; needs the package `mcp`
SKILL.md      how an agent works with the tools
"""

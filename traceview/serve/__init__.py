"""Servers of captures: the page with every event (`traceview analyze --serve`), and tools for agents (`traceview mcp`).

page.py       the HTTP server of the page, on the loopback address behind a random token, and its answers
agents.py     the tools for agents and their server on standard input and output
captures.py   which files agents may read, and the analyses that are kept
answers.py    their arguments and answers, as an agent sees them (tools.toml)
plugin/       the plugin for agents: skill, server and commands
"""

"""The tools for agents (`traceview mcp`).

agents.py     the tools and their server on standard input and output
captures.py   which files agents may read, and the analyses that are kept
answers.py    their arguments and answers, as an agent sees them (tools.toml)
plugin/       the plugin for agents: skill, server and commands
"""

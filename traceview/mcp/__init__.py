"""The tools for agents (`traceview mcp`).

agents.py     the tools, the files that they may read, and their server on standard input and output
answers.py    their arguments and answers, as an agent sees them (tools.toml)
plugin/       the plugin for agents: skill, server and commands
"""

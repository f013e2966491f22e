"""The configuration of a run: settings and their checks, YAML files and flags.

settings.py    one setting: declaration, parsing, validation
schema.py      Config, and the sections of what is trained
run.py         the sections of the run around it
aliases.py     names of settings in other libraries
conflicts.py   combinations of settings that do not work together
loading.py     defaults, YAML file and flags into one configuration
flags.py       command-line options and error output
"""

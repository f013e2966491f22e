"""The configuration of a run: settings and their checks, YAML files and flags.

settings.py    one setting: declaration, parsing, validation
strategies.py  names and capabilities of strategies
sections.py    what is trained, and the run around it
schema.py      Config, and the combinations of settings that do not work together
loading.py     defaults, YAML file and flags into one configuration, and the names of settings in other libraries
flags.py       command-line options and error output
"""

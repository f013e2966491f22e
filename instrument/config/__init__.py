"""The configuration of a run: settings and their checks, YAML files and flags.

settings.py    one setting: declaration, parsing, validation
strategies.py  names and capabilities of strategies
training.py    the sections of what is trained
run.py         the sections of the run around it
schema.py      Config, and the combinations of settings that do not work together
loading.py     defaults, YAML file and flags into one configuration, and the names of settings in other libraries
flags.py       command-line options and error output
"""

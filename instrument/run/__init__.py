"""`python -m instrument.run train.py ARGS`: ranges for a PyTorch script that stays as it is."""

"""A model, data and a loss of the user's own: `--model package.module:factory --data ... --loss ...`.

references.py  imports what "package.module:name" names
losses.py      computes the loss of a batch with the user's model and loss
streams.py     a loader over a DataLoader or another iterable of batches
"""

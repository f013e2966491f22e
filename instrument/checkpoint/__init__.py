"""Checkpoints: the files, what they contain, and how a run resumes from one."""

"""Checkpoints: their files, what they hold, and how a run resumes."""

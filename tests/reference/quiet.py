"""Imported before torch and diffusers: they say nothing but errors, and no core is taken from whatever else runs."""
import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
# Read when torch loads OpenMP, whose threads else spin while they wait.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

"""Transforms: what the data of a rule cannot say, one function in a module of its name each."""

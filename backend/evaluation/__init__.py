"""Measures of quality over a set of passages and questions, in a library that is thrown away."""

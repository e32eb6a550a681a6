"""Tests of fdmath.attention."""

"""Tests of fdmath.algebra; `libraries` and `states` are what they share with the tests of fdmath.attention."""

"""The algebra of attention states: three spellings of one sum, ⊕ in each, and orders of folding it."""

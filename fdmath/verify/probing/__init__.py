"""The questions of the contract probe, and how they are put to a function of any role."""

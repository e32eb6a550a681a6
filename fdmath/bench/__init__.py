"""Sweeps that measure: errors against their proven bounds. (Timers come with what they time.)"""

"""Texts for people: units, lists of names, equal texts of several hosts folded into one."""

"""Environments from a lock: what it asks for, its wheels on this machine, and one environment of them on every host.

Only this machine resolves and downloads; hosts need neither an index nor credentials. ``install.ensure`` is the door.
"""

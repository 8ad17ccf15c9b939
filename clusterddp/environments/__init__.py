"""Python environments from a lock file: its packages, their wheels on this machine, one environment on every host.

Only this machine resolves and downloads; hosts need neither an index nor credentials. Start with ``install.ensure``.
"""

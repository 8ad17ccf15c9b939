"""The names of Ansible's own variables: those that we read, with their aliases, and those that Ansible sets itself."""

from __future__ import annotations

PRIORITY = "ansible_group_priority"
# Each variable with its aliases; if several are set the last one wins, as in Ansible's ssh plugin.
HOST = ("ansible_host", "ansible_ssh_host")
PORT = ("ansible_port", "ansible_ssh_port")
USER = ("ansible_user", "ansible_ssh_user")
KEY_FILE = ("ansible_private_key_file", "ansible_ssh_private_key_file")
CONNECTION = "ansible_connection"
PYTHON = "ansible_python_interpreter"
COMMON_ARGS = ("ansible_ssh_common_args", "ssh_common_args")
EXTRA_ARGS = "ansible_ssh_extra_args"
SSH_ARGS_UNREAD = "ansible_ssh_args"  # replaces default options that Ansible passes to ssh and we do not

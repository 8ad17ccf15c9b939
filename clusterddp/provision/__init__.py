"""Prepares hosts with the Ansible that is installed here: its programs, our playbooks and the user's."""

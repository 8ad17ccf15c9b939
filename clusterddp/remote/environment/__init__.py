"""Environments of wheels on a host: built of what the operator has sent, told, removed. No index is ever asked."""

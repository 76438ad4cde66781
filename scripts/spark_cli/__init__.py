"""The ``spark`` command: one verb, one playbook, with live progress."""

"""make gpu-check: the stages that show whether a machine's GPU runs opbox, and how fast.

`stages` runs commands with limits and writes a file of JSON when each ends; `smoke` is the first of them; `__main__`
has the list.
"""

"""What each op set makes of each block: the parts of `python tools/op_sets.py`."""

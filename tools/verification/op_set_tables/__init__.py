"""What each op set makes of each block: the parts of `python tools/verification/op_sets.py`."""

"""How each op set lowers each block, for `python tools/verification/op_sets.py`."""

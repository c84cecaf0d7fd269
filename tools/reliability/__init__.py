"""How edgeformer behaves with files that are wrong, with full disks, and with signals at any moment."""

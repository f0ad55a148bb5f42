import sys

for arg in sys.argv[1:]:
    key, value = arg[2:].split("=")
    globals()[key] = int(value)

"""python3 -m aqpipe: the command. python3 -m aqpipe --where: the folder with programs, pages, examples and tools."""
import sys

import aqpipe

if sys.argv[1:] == ["--where"]:
    print(aqpipe.FOLDER)
else:
    aqpipe.aqpipe()

"""For the Python processes that Spark starts, a dozen for each stream: pyspark as it is installed.

Spark puts an archive of the same files first on their path. It has no byte code, so each process would compile all that it
imports: half a second of CPU. Where the archive lies in an installed pyspark that is on the path too, that is taken.
"""

import sys

ARCHIVE = "/pyspark/python/lib/pyspark.zip"

sys.path[:] = [entry for entry in sys.path if not (entry.endswith(ARCHIVE) and entry.removesuffix(ARCHIVE) in sys.path)]

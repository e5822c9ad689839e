"""What `test_stopped.py` launches: the command line, with rounds that take their time.

    python tests/jobs/slow.py SECONDS_OF_A_ROUND SECONDS_BETWEEN_SAVES SECONDS_OF_A_SAVE ARGUMENTS

A round waits after its record is written, so that it can be stopped there, and what is computed
stays what it is.
"""

import sys
import time

from undrift.cli.main import main
from undrift.engine.checkpoint import due, store
from undrift.results.trial import Journal


def later(function, seconds):
    def called(*arguments, **options):
        result = function(*arguments, **options)
        time.sleep(seconds)
        return result

    return called


if __name__ == "__main__":
    of_a_round, between_saves, of_a_save = map(float, sys.argv[1:4])
    sys.argv[1:4] = []
    Journal.add = later(Journal.add, of_a_round)
    store.write = later(store.write, of_a_save)
    due.SECONDS, due.SHARE = between_saves, 1e9
    main()

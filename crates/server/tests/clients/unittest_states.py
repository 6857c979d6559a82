"""Runs the tests of a module of the working directory. The module in; a JSON line with the name and the state of each test out."""

import json
import os
import signal
import sys
import unittest

# These tests wait without an end for what a server does not send, also in each of their subtests.
PATIENCE_S = 20


def give_up(*_):
    raise TimeoutError("what the test waits for does not come")


class States(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, PATIENCE_S)

    def stopTest(self, test):
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().stopTest(test)
        why = [text for failed, text in self.failures + self.errors if getattr(failed, "test_case", failed) is test]
        print(json.dumps({"name": test.id(), "state": "failed" if why else "passed", "why": "".join(why)[-600:]}), flush=True)


signal.signal(signal.SIGALRM, give_up)
sys.path.insert(0, os.getcwd())
unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(States())

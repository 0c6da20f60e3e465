"""Modules that a test needs. Without one the test is skipped, or fails if SMALLWORLD_REQUIRE_ALL_TESTS is
1, as in CI."""

import importlib
import os
import sys

SKIPPED = 77  # to ctest


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        print(f"skipped: {problem}")
        sys.exit(1 if os.environ.get("SMALLWORLD_REQUIRE_ALL_TESTS") == "1" else SKIPPED)

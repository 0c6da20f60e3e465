"""`pip install .` builds libsmallworld and the program by CMake and installs them beside the Python module.
$CMAKE_ARGS goes to CMake; $SMALLWORLD_BUILD_DIR is a build folder to use in place of build/python."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent


class Build(build_py):
    def run(self):
        super().run()
        folder = Path(os.environ.get("SMALLWORLD_BUILD_DIR", ROOT / "build" / "python"))
        if not (folder / "CMakeCache.txt").exists():
            subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
                            *shlex.split(os.environ.get("CMAKE_ARGS", ""))], check=True)
        subprocess.run(["cmake", "--build", folder, "--parallel", "--target", "libsmallworld", "smallworld"],
                       check=True)
        shutil.copy(folder / "libsmallworld.so.0", self.build_lib)
        shutil.copy(folder / "smallworld", Path(self.build_lib) / "smallworld-program")


class Wheel(bdist_wheel):
    """Any Python 3 loads the library, which is for one platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Platform(Distribution):
    def has_ext_modules(self):
        return True


(ROOT / "build").mkdir(exist_ok=True)
setup(version=re.search(r"VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(")[1])[1],
      package_dir={"": "python"}, py_modules=["smallworld"], distclass=Platform,
      cmdclass={"build_py": Build, "bdist_wheel": Wheel},
      options={"build": {"build_base": "build/wheel"}, "egg_info": {"egg_base": "build"}})

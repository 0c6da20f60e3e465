"""`pip install .` builds libsmallworld and the program by CMake and installs them inside the Python package.
$CMAKE_ARGS goes to CMake; without a GPU it is told to leave CUDA out. $SMALLWORLD_BUILD_DIR is a build folder to
use in place of build/python. With $SMALLWORLD_BUNDLE, as scripts/release.sh sets it, the wheel brings the shared
libraries that Debian and Ubuntu have only on demand, and its tag says which C library it needs."""

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
BUNDLE = bool(os.environ.get("SMALLWORLD_BUNDLE"))
# Of every system that a wheel may be installed on (PEP 600); a second C++ library would be in the way of other
# modules.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z))\.so\b")
# Where NVIDIA's packages for pip put cuBLAS and NCCL, from our package.
NVIDIA = ["$ORIGIN/../nvidia/" + name for name in ("cu13/lib", "cublas/lib", "nccl/lib")]


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Build(build_py):
    def run(self):
        super().run()
        folder = Path(os.environ.get("SMALLWORLD_BUILD_DIR", ROOT / "build" / "python"))
        given = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        if not (folder / "CMakeCache.txt").exists():
            if not shutil.which("nvidia-smi") and not any("SMALLWORLD_CUDA" in one for one in given):
                given.append("-DSMALLWORLD_CUDA=OFF")
            subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *given], check=True)
        subprocess.run(["cmake", "--build", folder, "--parallel", "--target", "libsmallworld", "smallworld"],
                       check=True)
        package = Path(self.build_lib) / "smallworld"
        for name in "libsmallworld.so.0", "smallworld":
            run("strip", "--strip-unneeded", "-o", package / name, folder / name)
        if BUNDLE:
            bundle(package)


def bundle(package):
    """Puts the libraries that ours need beside them, under names that no other module has."""
    ours = [package / "libsmallworld.so.0", package / "smallworld"]
    needed = {}
    for line in "".join(run("ldd", file) for file in ours).splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and not SYSTEM.match(name):
            needed[name] = path.split(" (")[0]
    for name, path in needed.items():
        ours.append(package / f"smallworld-{name}")
        shutil.copy(path, ours[-1])
        run("patchelf", "--set-soname", ours[-1].name, ours[-1])
    for file in ours:
        for name in set(run("patchelf", "--print-needed", file).split()) & set(needed):
            run("patchelf", "--replace-needed", name, f"smallworld-{name}", file)
        run("patchelf", "--force-rpath", "--set-rpath", ":".join(["$ORIGIN", *NVIDIA]), file)


class Wheel(bdist_wheel):
    """Any Python 3 loads the library, which is for one platform."""

    def get_tag(self):
        platform = super().get_tag()[2]
        if BUNDLE:
            major, minor = os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2]
            platform = platform.replace("linux", f"manylinux_{major}_{minor}")
        return "py3", "none", platform


class Platform(Distribution):
    def has_ext_modules(self):
        return True


(ROOT / "build").mkdir(exist_ok=True)
setup(version=re.search(r"VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(")[1])[1],
      package_dir={"": "python"}, packages=["smallworld"], distclass=Platform,
      cmdclass={"build_py": Build, "bdist_wheel": Wheel},
      options={"build": {"build_base": "build/wheel"}, "egg_info": {"egg_base": "build"}})

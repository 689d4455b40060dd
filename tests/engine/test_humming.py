"""What is answered to Humming is what its own extension makes of the driver's attributes, for every shipped GPU.

The driver is a fake one with a device for each target; the extension is the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import libcuda

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
PLUGIN = HERE.parents[1] / "hatch_plugin"

ATTRIBUTES = {
    1: "max_threads_per_block",
    8: "shared_memory_per_block",
    13: "clock_rate",
    16: "sm_count",
    36: "memory_clock_rate",
    37: "memory_bus_width",
    38: "l2_cache_size",
    39: "max_threads_per_multiprocessor",
    82: "registers_per_multiprocessor",
    97: "shared_memory_per_block_optin",
}
"""CUdevice_attribute of cuda.h → field of a target; 75 and 76 are the compute capability."""

FAKE_DRIVER = """
#include <string.h>
static const int values[][98] = {%(values)s};
static const char *names[] = {%(names)s};
int cuInit(unsigned int flags) { return 0; }
int cuGetErrorName(int error, const char **text) { *text = "none"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "none"; return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return 0; }
int cuCtxGetDevice(int *device) { return *device = 0; }
int cuDeviceGetCount(int *count) { *count = %(count)d; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, names[device], size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = values[device][attribute]; return 0; }
"""

ASK = """
import json, sys
import humming.device
from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import humming as pretended
from hatch_model_cache.compile.pretend.device import Device
from hatch_model_cache.compile.pretend.patches import Patches

names = json.loads(sys.argv[1])
found = []
real = [humming.device.DeviceInfo(n) for n in range(len(names))]
for one, name in zip(real, names):
    one._get_value()
for one, name in zip(real, names):
    patches = Patches()
    pretended.install(patches, Device(targets.load_gpu(name)))
    answers = vars(humming.device._get_device_info_extension()._DeviceInfo(0))
    known = {key: value for key, value in answers.items() if key not in ("index", "is_ppu")}
    found.append([known, {key: getattr(one, key) for key in known}])
    patches.undo()
print(json.dumps(found))
"""


def test_what_humming_is_told_is_what_it_would_reckon(engine_python: str, tmp_path: Path) -> None:
    every = list(targets.load_gpus().values())
    values = []
    for target in every:
        row = dict(zip((75, 76), target.capability, strict=True))
        row |= {number: getattr(target, name) for number, name in ATTRIBUTES.items()}
        values.append("{" + ", ".join(f"[{number}] = {value}" for number, value in row.items()) + "}")
    names = ", ".join(json.dumps(target.device_name) for target in every)
    source = tmp_path / "fake_driver.c"
    source.write_text(FAKE_DRIVER % {"values": ", ".join(values), "names": names, "count": len(every)})
    library = tmp_path / libcuda.SONAME
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)

    done = subprocess.run(
        [engine_python, "-s", "-c", ASK, json.dumps([target.name for target in every])],
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(PLUGIN)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == len(every) > 10
    for target, (pretended, reckoned) in zip(every, told, strict=True):
        assert pretended == reckoned, target.name
        assert len(pretended["tensorcore_tops"]) >= 3

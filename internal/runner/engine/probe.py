import importlib.metadata as md, importlib.util, json, os, re, sys

def version(*names):
    for name in names:
        try:
            return md.version(name)
        except Exception:
            pass
    return ""

def torch_cuda():
    try:
        where = os.path.dirname(importlib.util.find_spec("torch").origin)
        with open(os.path.join(where, "version.py")) as f:
            found = re.search(r"^cuda(?:\s*:[^=]*)?\s*=\s*'([^']+)'", f.read(), re.M)
        return found.group(1) if found else ""
    except Exception:
        return ""

def nccl():
    found = version("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
    if found:
        return found
    try:
        import ctypes
        n = ctypes.c_int()
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(n))
        v = n.value
        return "%d.%d.%d" % ((v // 10000, v // 100 % 100, v % 100) if v >= 10000 else (v // 1000, v // 100 % 10, v % 100))
    except Exception:
        return ""

print(json.dumps({"version": version(sys.argv[1]), "torch": version("torch"), "cuda": torch_cuda(), "nccl": nccl()}))

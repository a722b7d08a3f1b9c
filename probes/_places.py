"""Where would a rank keep what it compiles, saves and prepares, and what did its progress bar say last? Pure.

    TRITON_CACHE_DIR=/scratch/t  HOME=/home/ann        -> ("triton", "/scratch/t"), ("cuda", "/home/ann/.nv/ComputeCache")
    python train.py --save /ckpt --data-cache-path dc  -> ("checkpoint", "/ckpt"), ("data_cache", "<working folder>/dc")
    " 45%|####      | 45/100 [00:10<00:12,  4.50it/s]"   as tqdm writes it, between carriage returns

Names and defaults stand in the sources of those who write there: Triton knobs.py, torch/_inductor cache_dir_utils.py and
cpp_extension.py, torch_xla runtime.py, the CUDA programming guide (environment variables), JAX's and Neuron's pages on
their persistent caches, huggingface_hub constants.py.
Fooled by   what the job's own code sets (/proc shows the environment as it was at exec; a compile worker shows what the
            rank had set by then, so its environment is asked too); folders named in a configuration file; caches of
            libraries that are not listed here; compilers that keep everything in memory.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import os
import re

LONGEST = 4096  # PATH_MAX: what is longer names no path
MOST_OPTIONS = 8  # folders taken from one command line

ENV_NAMES = (
    "HOME TMPDIR TEMP TMP LOGNAME USER LNAME USERNAME XDG_CACHE_HOME TRITON_CACHE_DIR TRITON_HOME "
    "TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH TORCH_EXTENSIONS_DIR JAX_COMPILATION_CACHE_DIR XLA_PERSISTENT_CACHE_PATH "
    "XLA_FLAGS NEURON_COMPILE_CACHE_URL NEURON_CC_FLAGS HF_HOME HF_DATASETS_CACHE HF_HUB_CACHE HUGGINGFACE_HUB_CACHE "
    "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMIX_RANK"
).split()
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

# Options, without dashes and what stands before the last dot: Megatron, Hugging Face, fairseq, NeMo, Composer, torchtitan.
SAVES = frozenset(
    "save save_dir save_path save_folder output_dir out_dir checkpoint_dir checkpoint_path ckpt_dir ckpt_path "
    "default_root_dir exp_dir dump_folder".split()
)
DATA = frozenset("data_cache_path data_cache_dir dataset_cache_dir cache_dir dataset_prepared_path".split())

XLA_DIR = re.compile(r"--xla_gpu_per_fusion_autotune_cache_dir=(\S+)")
NEURON_DIR = re.compile(r"--cache_dir[= ](\S+)")
ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
BAR = re.compile(r"\d{1,3}%\||\[\d{2,}:\d{2}(?::\d{2})?[<,]|[━█#=>]{3,} {0,9}\d{1,3} ?%")
PSEUDO = ("/proc", "/sys", "/dev")  # not where anybody keeps a cache; they change all the time

_WANTED = {name.encode(): name for name in ENV_NAMES}


def parse_environ(data):
    """The variables of ENV_NAMES in an environment block (bytes); the first value wins, as in getenv."""
    env = {}
    for item in data.split(b"\0"):
        name, mark, value = item.partition(b"=")
        wanted = _WANTED.get(name)
        if mark and wanted and wanted not in env and len(value) < LONGEST:
            env[wanted] = os.fsdecode(value)  # comes back as the same bytes, whatever the locale
    return env


def parse_cmdline(data):
    return [os.fsdecode(word) for word in data.split(b"\0")[:1024]]


def wears_another(env, rank):
    """Does this environment name a rank, and not this one? (A pid that was given away.)"""
    worn = [env[name] for name in RANK_NAMES if name in env]
    return bool(worn) and str(rank) not in worn


def account(uid, passwd):
    """(name, home) of a user in the text of /etc/passwd; ("", "") if it does not list him."""
    for line in (passwd or "").splitlines():
        part = line.split(":")
        if len(part) > 5 and part[2] == str(uid):
            return part[0], part[5]
    return "", ""


def first(env, *names):
    return next((env[name] for name in names if env.get(name)), "")


def caches_of(env, name="", home=""):
    """[(kind, path)] of the compile caches of a process; name and home of its user where the environment lacks them."""
    home = env.get("HOME") or home
    user = re.sub(r'[\\/:*?"<>|]', "_", first(env, "LOGNAME", "USER", "LNAME", "USERNAME") or name)
    temporary = first(env, "TMPDIR", "TEMP", "TMP") or "/tmp"
    told = NEURON_DIR.search(env.get("NEURON_CC_FLAGS", ""))
    tuned = XLA_DIR.search(env.get("XLA_FLAGS", ""))
    found = [
        ("triton", env.get("TRITON_CACHE_DIR") or under(env.get("TRITON_HOME") or home, ".triton/cache")),
        ("inductor", env.get("TORCHINDUCTOR_CACHE_DIR") or (user and under(temporary, "torchinductor_" + user))),
        ("cuda", env.get("CUDA_CACHE_PATH") or under(home, ".nv/ComputeCache")),
        ("torch_extensions", env.get("TORCH_EXTENSIONS_DIR") or under(user_cache(env, home), "torch_extensions")),
        ("xla", env.get("JAX_COMPILATION_CACHE_DIR")),
        ("xla", env.get("XLA_PERSISTENT_CACHE_PATH")),
        ("xla", tuned and tuned.group(1)),
        ("neuron", told.group(1) if told else env.get("NEURON_COMPILE_CACHE_URL") or "/var/tmp/neuron-compile-cache"),
    ]
    return [(kind, path) for kind, path in found if path]


def folders_of(env, argv, home=""):
    """[(kind, path)] of checkpoints and prepared data: what the command line names, then Hugging Face's caches."""
    home = env.get("HOME") or home
    found = []
    for index, word in enumerate(argv):
        option, mark, value = word.partition("=")
        if not mark and word.startswith("-"):
            value = argv[index + 1] if index + 1 < len(argv) else ""
        elif not mark:
            continue
        last = option.lstrip("-").replace("-", "_").lower().rpartition(".")[2]
        kind = "checkpoint" if last in SAVES else "data_cache" if last in DATA else ""
        if kind and value and not value.startswith("-") and len(found) < MOST_OPTIONS:
            found.append((kind, value))
    face = env.get("HF_HOME") or under(user_cache(env, home), "huggingface")
    found.append(("data_cache", env.get("HF_DATASETS_CACHE") or under(face, "datasets")))
    found.append(("data_cache", first(env, "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or under(face, "hub")))
    return [(kind, path) for kind, path in found if path]


def user_cache(env, home):
    return env.get("XDG_CACHE_HOME") or under(home, ".cache")


def under(folder, name):
    return os.path.join(folder, name) if folder else ""


def absolute(path, cwd, home=""):
    """A path as the kernel takes it, or "" where it is none of a file system: a URL, a pseudo file system, no place known."""
    if path.startswith("file://"):
        path = path[7:]
    if path.startswith("~/"):
        path = under(home, path[2:])
    if not path or "\0" in path or "://" in path or len(path) >= LONGEST:
        return ""
    if not path.startswith("/"):
        path = under(cwd, path) if cwd.startswith("/") else ""
    plain = os.path.normpath(path) if path else "/"
    shared_memory = plain == "/dev/shm" or plain.startswith("/dev/shm/")
    if plain.lstrip("/") == "" or ("/" + plain.split("/")[1] in PSEUDO and not shared_memory):
        return ""
    return path


def progress_line(raw):
    """The last piece of output (bytes) that looks like a progress bar, or None. tqdm separates them by \\r."""
    for piece in reversed(re.split(rb"[\r\n]+", raw or b"")):
        text = ESCAPES.sub("", piece[-400:].decode("utf-8", "replace"))
        if BAR.search(text):
            return "".join(c if c.isprintable() else " " for c in text).strip()[:200]
    return None

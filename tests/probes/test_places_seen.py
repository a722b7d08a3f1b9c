"""Where a rank keeps what it compiles and saves, and what a progress bar looks like. No file is touched."""

from __future__ import annotations

import _places as places
import pytest

ANN = {"HOME": "/home/ann", "USER": "ann"}


def caches(**env: str) -> set[tuple[str, str]]:
    return set(places.caches_of({**ANN, **env}))


def test_without_a_word_the_documented_defaults_hold() -> None:
    assert caches() == {
        ("triton", "/home/ann/.triton/cache"),
        ("inductor", "/tmp/torchinductor_ann"),
        ("cuda", "/home/ann/.nv/ComputeCache"),
        ("torch_extensions", "/home/ann/.cache/torch_extensions"),
        ("neuron", "/var/tmp/neuron-compile-cache"),
    }


@pytest.mark.parametrize(
    "env, cache",
    [
        ({"TRITON_CACHE_DIR": "/s/t"}, ("triton", "/s/t")),
        ({"TRITON_HOME": "/s"}, ("triton", "/s/.triton/cache")),
        ({"TRITON_HOME": "/s", "TRITON_CACHE_DIR": "/t"}, ("triton", "/t")),
        ({"TORCHINDUCTOR_CACHE_DIR": "/s/i"}, ("inductor", "/s/i")),
        ({"TMPDIR": "/local"}, ("inductor", "/local/torchinductor_ann")),
        ({"LOGNAME": "LAB\\ann:x"}, ("inductor", "/tmp/torchinductor_LAB_ann_x")),
        ({"CUDA_CACHE_PATH": "/s/cc"}, ("cuda", "/s/cc")),
        ({"TORCH_EXTENSIONS_DIR": "/s/e"}, ("torch_extensions", "/s/e")),
        ({"XDG_CACHE_HOME": "/s/x"}, ("torch_extensions", "/s/x/torch_extensions")),
        ({"JAX_COMPILATION_CACHE_DIR": "/s/j"}, ("xla", "/s/j")),
        ({"XLA_PERSISTENT_CACHE_PATH": "/s/p"}, ("xla", "/s/p")),
        ({"XLA_FLAGS": "--a=1 --xla_gpu_per_fusion_autotune_cache_dir=/s/f --b"}, ("xla", "/s/f")),
        ({"NEURON_COMPILE_CACHE_URL": "/s/n"}, ("neuron", "/s/n")),
        ({"NEURON_COMPILE_CACHE_URL": "/s/n", "NEURON_CC_FLAGS": "-O1 --cache_dir=/s/m"}, ("neuron", "/s/m")),
    ],
)
def test_what_the_environment_names_is_looked_at_in_place_of_the_default(env, cache) -> None:
    found = caches(**env)
    assert cache in found and len([kind for kind, _ in found if kind == cache[0]]) == 1


def test_without_home_and_user_the_account_file_tells_them() -> None:
    passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1007:100::/home/a:/bin/sh\nbroken\n"
    assert places.account("1007", passwd) == ("ann", "/home/a")
    assert places.account("7", passwd) == places.account("7", None) == ("", "")
    assert ("triton", "/home/a/.triton/cache") in places.caches_of({}, *places.account("1007", passwd))
    assert {kind for kind, _ in places.caches_of({})} == {"neuron"}, "nobody's home is nowhere"


@pytest.mark.parametrize(
    "argv, folder",
    [
        ("train.py --save /ckpt", ("checkpoint", "/ckpt")),
        ("train.py --save=/ckpt --load /other", ("checkpoint", "/ckpt")),
        ("train.py --save-dir out", ("checkpoint", "out")),
        ("train.py --output_dir out", ("checkpoint", "out")),
        ("train.py --job.dump_folder /d", ("checkpoint", "/d")),
        ("train.py exp_manager.exp_dir=/nemo", ("checkpoint", "/nemo")),
        ("train.py --data-cache-path /dc", ("data_cache", "/dc")),
        ("train.py --cache_dir=/hf", ("data_cache", "/hf")),
    ],
)
def test_folders_are_taken_from_the_command_line(argv, folder) -> None:
    found = places.folders_of(ANN, argv.split())
    assert folder in found
    assert [f for f in found if "huggingface" not in f[1]] == [folder]


@pytest.mark.parametrize(
    "argv", ["train.py --save", "train.py --save --load x", "train.py --saved /x", "save /x", "a=", ""]
)
def test_an_option_without_a_folder_names_none(argv) -> None:
    assert places.folders_of({}, argv.split()) == []


def test_prepared_data_lies_where_hugging_face_keeps_it() -> None:
    assert places.folders_of(ANN, []) == [
        ("data_cache", "/home/ann/.cache/huggingface/datasets"), ("data_cache", "/home/ann/.cache/huggingface/hub"),
    ]  # fmt: skip
    env = {**ANN, "HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}
    assert places.folders_of(env, []) == [("data_cache", "/hf/datasets"), ("data_cache", "/hub")]
    assert places.folders_of({**env, "HF_DATASETS_CACHE": "/ds"}, [])[0] == ("data_cache", "/ds")


def test_a_command_line_of_a_thousand_folders_costs_a_few() -> None:
    words = [f"--save=/c{i}" for i in range(5000)]
    assert len(places.folders_of({}, words)) == places.MOST_OPTIONS
    assert len(places.parse_cmdline(b"\0".join(w.encode() for w in words))) <= 1024


@pytest.mark.parametrize(
    "path, cwd, told",
    [
        ("/a/b", "/w", "/a/b"),
        ("b", "/w", "/w/b"),
        ("../b", "/w/x", "/w/x/../b"),
        ("b", "", ""),
        ("b", "(deleted)", ""),
        ("~/c", "/w", "/home/ann/c"),
        ("file:///c", "/w", "/c"),
        ("s3://bucket/c", "/w", ""),
        ("hdfs://x", "/w", ""),
        ("", "/w", ""),
        ("/", "/w", ""),
        ("/..", "/w", ""),
        ("//", "/w", ""),
        ("/x/../", "/w", ""),
        ("/proc", "/w", ""),
        ("/proc/self/root", "/w", ""),
        ("/tmp/../proc/1", "/w", ""),
        ("/sys/kernel", "/w", ""),
        ("/dev", "/w", ""),
        ("/dev/shm", "/w", "/dev/shm"),
        ("/dev/shm/c", "/w", "/dev/shm/c"),
        ("/devices/c", "/w", "/devices/c"),
        ("/a\0b", "/w", ""),
        ("/" + "x" * 5000, "/w", ""),
        ("x" * 200, "/w" * 2000, "/w" * 2000 + "/" + "x" * 200),
    ],
)
def test_a_path_is_made_absolute_or_is_none(path, cwd, told) -> None:
    assert places.absolute(path, cwd, "/home/ann") == told


def test_of_an_environment_only_known_names_are_taken_and_the_first_wins() -> None:
    data = b"HOME=/a\0HOME=/b\0WANDB_API_KEY=secret\0=x\0\0TMPDIR=\xff\xfe\0HF_HOME=" + b"h" * 9000 + b"\0RANK=3"
    env = places.parse_environ(data)
    assert env == {"HOME": "/a", "TMPDIR": "\udcff\udcfe", "RANK": "3"}


def test_a_process_that_wears_another_number_is_another_rank() -> None:
    assert not places.wears_another({}, 3) and not places.wears_another({"RANK": "3", "PMIX_RANK": "0"}, 3)
    assert places.wears_another({"RANK": "4"}, 3) and places.wears_another({"SLURM_PROCID": "x"}, 3)


TQDM = " 45%|████▌     | 45/100 [00:10<00:12,  4.50it/s]"


@pytest.mark.parametrize(
    "raw, line",
    [
        (f"{TQDM}".encode(), TQDM.strip()),
        (f"start\n\r  1%|  | 1/100 [00:00<?, ?it/s]\r{TQDM}".encode(), TQDM.strip()),
        (f"{TQDM}\nINFO: something else\n".encode(), TQDM.strip()),
        (f"\x1b[A\x1b[2K{TQDM}\x1b[0m\r".encode(), TQDM.strip()),
        (b"Map (num_proc=8):  12%|#2        | 1200/10000 [00:03<00:20, 430.11 examples/s]", None),
        (b"120it [00:03, 35.1it/s]", None),
        (b"Epoch 3: 100%|##########| 10/10 [1:02:03<00:00]", None),
        ("Downloading ━━━━━━━━ 45% 0:00:12".encode(), "Downloading ━━━━━━━━ 45% 0:00:12"),
    ],
)
def test_the_last_progress_bar_is_found_whatever_follows_it(raw, line) -> None:
    assert places.progress_line(raw) == (line or raw.decode())


@pytest.mark.parametrize(
    "raw",
    [
        None, b"", b"\n\r\n", b"loss 3.2 at 45%", b"[2026-12-01 00:00:01] iteration 12/ 500", b"==== 5 ====",
        b"[12:30:01] INFO step 3", b"100% done",
    ],
)  # fmt: skip
def test_what_is_no_progress_bar_is_none(raw) -> None:
    assert places.progress_line(raw) is None


def test_a_hostile_line_is_bounded_and_printable() -> None:
    line = places.progress_line(b"\x1b]0;evil\x07" * 5000 + b" 45%|\xff\x00" + b"#" * 5000)
    assert line is None or (len(line) <= 200 and line.isprintable())
    line = places.progress_line(b"\x07\x1b]0; 45%|####|" + b"x" * 300)
    assert line is not None and len(line) <= 200 and line.isprintable()

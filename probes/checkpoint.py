"""Where does the job save, how old is its last complete checkpoint, and how was the job laid out? Rank 0's node tells.

Reads    /proc/<pid>/{environ,cmdline,cwd} of every process, for the one that wears RANK=0 and this job's marks:
         "--save", "/ckpt/run7", "--tensor-model-parallel-size", "8"
         the folders that it names, through /proc/<pid>/root: see _checkpoints.py
Fooled by   folders that a configuration file names (then nothing is told); a file server whose clock is not ours;
            whatever _checkpoints.py is fooled by.
"""

import os

PROBE = {
    "name": "checkpoint",
    "version": 1,
    "needs": [],
    "timeout_s": 4,
    "cost": "cheap",
    "fields": {
        "folders": "list: path, kind megatron deepspeed dcp, step, at epoch s, gap_s [median, least, most], why",
        "launch": "numbers of the command line: tp pp cp layers global_batch micro_batch; text order",
    },
}


def mine(environ, job_id, match):
    """Is a process with this environment (bytes) the job's?"""
    env = dict(item.partition(b"=")[::2] for item in reversed(environ.split(b"\0")))
    if match:
        return all(env.get(os.fsencode(name)) == os.fsencode(value) for name, value in match.items())
    ids = [env[name] for name in (b"SLURM_JOB_ID", b"TORCHELASTIC_RUN_ID") if name in env]
    return not job_id or not ids or os.fsencode(job_id) in ids


def collect(ctx):
    import _checkpoints
    import _dump_places
    import _folders
    import _places
    import _stuck

    match = ctx.args.get("match") if isinstance(ctx.args.get("match"), dict) else {}
    match = {str(name): str(value) for name, value in match.items()}
    pids = [str(pid) for rank, pid in _dump_places.find_ranks(ctx) if rank == 0]

    def learn(pid):
        environ = ctx.read_bytes(ctx.proc(pid + "/environ"), 262144) or b""
        if not mine(environ, str(ctx.args.get("job_id") or ""), match):
            return None
        argv = _places.parse_cmdline(ctx.read_bytes(ctx.proc(pid + "/cmdline"), 65536) or b"")
        env = _places.parse_environ(environ)
        named = [path for kind, path in _places.folders_of(env, argv) if kind == "checkpoint"]
        try:
            cwd = os.readlink(ctx.proc(pid + "/cwd"))
        except OSError:
            cwd = ""
        paths = [_places.absolute(path, cwd, env.get("HOME", "")) for path in named]
        return [path for path in dict.fromkeys(paths) if path], _checkpoints.launch_of(argv)

    told, _, _ = _stuck.guarded(pids, learn, ctx.left, 0.3, 4)
    ranks = [(pid, told[pid]) for pid in pids if told.get(pid) and any(told[pid])]
    if not ranks:
        raise ctx.Absent("no process here is rank 0 and names a folder or a layout")
    pid, (paths, launch) = max(ranks, key=lambda rank: (bool(rank[1][0]), -int(rank[0])))

    def look(path):
        real = _folders.resolve_in(ctx.proc(pid + "/root"), path) if ctx.real else ctx.root(path)
        return _checkpoints.last(real, ctx.now())

    found, stuck, _ = _stuck.guarded(paths[:4], look, ctx.left, 1.0, 2)
    for path in stuck:
        ctx.note("%s does not answer" % path)
    return {"folders": [dict(found[path], path=path) for path in paths[:4] if path in found], "launch": launch}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)

"""Options of the real tools, and reading a command line by them. A value of True: the option takes a value."""

from __future__ import annotations


class UnknownOptionError(Exception):
    """An option that the real tool does not have, or one without its value."""


def table(flags: str, values: str) -> dict[str, bool]:
    return {**dict.fromkeys(flags.split(), False), **dict.fromkeys(values.split(), True)}


# flux-core 0.88.0
_FLUX_JOB = (
    "-u --unbuffered --dry-run --quiet",
    "-B --bank -q --queue -t --time-limit --urgency --job-name -o --setopt -S --setattr --add-file --dependency"
    " --requires --begin-time --env --env-remove --env-file --rlimit --input --output --error --cwd --flags --signal",
)
_FLUX_TASKS = table(
    _FLUX_JOB[0] + " -l --label-io -v --verbose -x --exclusive",
    _FLUX_JOB[1]
    + " --taskmap --wait-event -N --nodes -n --ntasks -c --cores-per-task -g --gpus-per-task --cores"
    " --tasks-per-node --tasks-per-core --gpus-per-node",
)
FLUX = {
    "run": _FLUX_TASKS,
    "submit": {**_FLUX_TASKS, **table("--wait --watch --progress --jps", "--cc --bcc --log --log-stderr")},
    "batch": table(
        _FLUX_JOB[0] + " -x --exclusive --wrap",
        _FLUX_JOB[1] + " --conf --broker-opts --dump -n --nslots -c --cores-per-slot -g --gpus-per-slot -N --nodes",
    ),
    "jobs": table(
        "-a -n --no-header --json -R --recursive --recurse-all --stats --stats-only",
        "-c --count -f --filter --since -u --user --name -q --queue -i --include -o --format --sort -w --width -L"
        " --level --threads",
    ),
    "cancel": table("--all -n --dry-run -q --quiet", "-u --user -S --states -m --message"),
    "exec": table(
        "--bg --waitable --attach -l --label-io -n --noinput -v --verbose -q --quiet --with-imp",
        "-r --rank -x --exclude --label -d --dir -j --jobid",
    ),
    "start": table(
        "-v --verbose -X --noexec --sysconfig",
        "-S --setattr -c --config-path --conf -r --recovery -o --broker-opts --wrap -s --test-size --test-hosts"
        " --test-exit-timeout --test-exit-mode --test-start-mode --test-rundir",
    ),
    "getattr": {},
    "job timeleft": table("-H --human", ""),
}  # fmt: skip

# IBM Spectrum LSF 10.1, its Job Step Manager 10.4
LSF = {
    "bsub": table(
        "-ar -B -H -I -Ip -Is -IS -ISp -ISs -IX -K -N -Ne -h -V -r -rn -ul -x -XF -Zs -tty -smt",
        "-a -alloc_flags -app -b -C -c -clusters -core_isolation -csm -cn_cu -cn_mem -cwd -D -data -E -Ep -e -env -eo"
        " -eptl -ext -F -f -G -g -gpu -hl -hostfile -i -is -J -Jd -jm -jobaff -jsdl -jsm -k -L -Lp -ln_mem -ln_slots -M"
        " -m -mig -n -network -nnodes -notify -o -oo -outdir -P -p -pack -Q -q -R -rcacct -ru -S -s -sla -smt -sp"
        " -stage -step_cgroup -T -t -ti -U -u -ul -v -W -We -w -wa -wt",
    ),
    "bjobs": table(
        "-A -a -aff -aps -cname -d -env -h -hms -hostfile -json -l -N -noheader -p -prio -psum -r -rusage -s -script"
        " -sum -UF -V -W -WF -WL -WP -w -X -x",
        "-app -data -fwd -G -g -J -Jd -Lp -m -o -P -pe -q -sla -ss -u",
    ),
    "bkill": table("-b -h -V -l -d -C", "-app -g -J -m -q -r -s -sla -stat -u"),
    "jsrun": table(
        "-i --immediate -A --allocate_only -V --version -?",
        "-a --tasks_per_rs -b --bind -B --bind_gpus -c --cpu_per_rs -d --launch_distribution -D --env_no_propagate -e"
        " --stdio_mode -E --env -f --appfile -F --env_eval -g --gpu_per_rs -h --chdir -J --use_reservation -k"
        " --stdio_stderr -K --rs_per_socket -l --latency_priority -L --use_spindle -m --memory_per_rs -M --smpiargs -n"
        " --nrs -o --stdio_stdout -p --np -P --pre_post_exec -r --rs_per_host -S --save_resources -t --stdio_input -U"
        " --use_resources -X --exit_on_error -Z --preserve",
    ),
}  # fmt: skip

# OpenPBS 23; the mpiexec of HPE PALS
PBS = {
    "qsub": table(
        "-f -h -I -k -V -X -z -G",
        "-a -A -c -C -e -J -j -l -m -M -N -o -p -P -q -r -R -S -u -v -W",
    ),
    "qstat": table("-a -B -D -E -f -G -H -i -J -M -n -p -Q -q -r -s -t -T -w -x -1", "-F -u -c"),
    "qdel": table("-x", "-W"),
    "qselect": table("-x -J -T -H -E", "-a -A -c -h -l -N -p -P -q -r -s -t -u"),
    "mpiexec": table(
        "-l --label --no-abort-on-failure --exclusive --overcommit -v -h --print-rank-map -print-rank-map",
        "-n --np -np --ppn -ppn --depth -d --cpu-bind --mem-bind --gpu-bind --host --hosts -H --hostfile --env -genv"
        " --genv --envall --wdir --line-buffer --pmi --rlimits --configfile -L --exclude-hosts",
    ),
}  # fmt: skip


def read_options(
    words: list[str], known: dict[str, bool], *, is_short: bool = True
) -> tuple[list[tuple[str, str]], list[str]]:
    """The options in their order, and the words behind them.

    `is_short`: options of one letter may have their value behind them, ``-N2``. Raises UnknownOptionError.
    """
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word in known and not known[word]:
            found.append((word, ""))
        elif word in known:
            if not rest:
                raise UnknownOptionError(word)
            found.append((word, rest.pop(0)))
        elif equals and name.startswith("--") and known.get(name):
            found.append((name, value))
        elif is_short and not word.startswith("--") and word[:2] in known and known[word[:2]]:
            found.append((word[:2], word[2:]))
        elif is_short and not word.startswith("--") and known.get(word[:2]) is False:
            found.append((word[:2], ""))
            rest.insert(0, "-" + word[2:])
        else:
            raise UnknownOptionError(word)
    return found, rest


def last(options: list[tuple[str, str]], *names: str, default: str = "") -> str:
    """The value of the last of these options."""
    values = [value for name, value in options if name in names]
    return values[-1] if values else default

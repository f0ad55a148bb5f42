"""Supervisor process: starts a program with its limits, and ends it with all its descendants.

``process.py`` starts it (``python -I -S supervisor_entry.py FD OWNER``; OWNER is the process that starts it), sends an
order through the socket FD and reads how the program ended. If the socket closes, envmatrix was killed or wants the
program to end. The byte HOLD stops the program and its descendants, RELEASE resumes them; each is answered with the
same byte when it is done. All descendants stay below this process, even daemons (PR_SET_CHILD_SUBREAPER), so none is
left when it has no child.
It starts before every trial, so it imports little: it takes about 20 ms of CPU time.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if not TYPE_CHECKING:
    import _signal as signal  # without the enumerations of ``signal``, which take milliseconds
else:
    import signal
    from collections.abc import Callable, Collection, Iterable

    #: CPUs, memory nodes as a mask, the cgroup.procs of cgroups, RLIMIT_DATA in bytes, and RLIMIT_NPROC.
    Place = tuple[tuple[int, ...], int, tuple[str, ...], int, int]
    #: ``process.Overlay``'s root, scratch folder, work folder and stale file, and the folder to start in.
    Overlay = tuple[str, str, str, str, str]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
#: Options of an overlay, the best first: only the first can rename the folders below it, and it needs privileges.
_OVERLAY_OPTIONS = (",redirect_dir=on", ",userxattr", "")
#: Seconds between SIGINT, SIGTERM and SIGKILL; longer than bench/user_program.py gives its own children.
GRACE_S = 2.0
HOLD, RELEASE = b"-", b"+"
#: Seconds for processes to stop: one inside the kernel stops when it returns.
_STOPPED_S = 10.0
#: Seconds for the system to end killed processes.
_REAPED_S = 10.0
#: File in which Intel's OpenMP runtime registers a process (kmp_runtime.cpp), often left behind at its end.
_SHM, _NOTE = "/dev/shm", "__KMP_REGISTERED_LIB_"  # noqa: S108
_libc = ctypes.CDLL(None, use_errno=True)


def bind_memory(mask: int) -> None:
    """Allocate memory only from the NUMA nodes in this mask; the policy is kept across exec (set_mempolicy(2))."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"memory nodes cannot be set on {os.uname().machine}")
    nodes = ctypes.c_ulong(mask)
    if _libc.syscall(number, _MPOL_BIND, ctypes.byref(nodes), 8 * ctypes.sizeof(nodes) + 1) != 0:
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def confine(cpus: tuple[int, ...], nodes: int, groups: tuple[str, ...], data_bytes: int, processes: int) -> None:
    """Enter CPUs, memory nodes (a mask), cgroups (their cgroup.procs), RLIMIT_DATA, RLIMIT_NPROC; 0, (): no limit."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    for group in groups:
        with open(group, "wb", buffering=0) as members:
            members.write(b"0")
    if data_bytes or processes:
        import resource

        for limit, value in ((resource.RLIMIT_DATA, data_bytes), (resource.RLIMIT_NPROC, processes)):
            if value:
                resource.setrlimit(limit, (value, value))
    if nodes:
        bind_memory(nodes)


def _checked(failed: int) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unshare_mounts() -> None:
    """Give this process its own mounts; without privileges, in a user namespace with the same user and group."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS):
        _checked(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER))
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "wb", buffering=0) as file:
                file.write(text.encode())
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))


def mount_overlay(root: str, scratch: str, work: str, stale: str, folder: str) -> None:
    """Mount an overlay on ``root`` for this process and its descendants, remove ``stale`` in it, and enter ``folder``.

    What they write below ``root`` goes to ``scratch``, except in ``work``. File descriptors stand for paths that may
    contain the separators of mount options.
    """
    _unshare_mounts()
    lower, kept = (os.open(path, os.O_PATH) for path in (root, work))
    os.chdir(scratch)
    for options in _OVERLAY_OPTIONS:
        text = f"lowerdir=/proc/self/fd/{lower},upperdir=upper,workdir=work{options}"
        failed = _libc.mount(b"overlay", os.fsencode(root), b"overlay", 0, text.encode())
        if not failed:
            break
    _checked(failed)
    if work.startswith(f"{root}/"):
        _checked(_libc.mount(f"/proc/self/fd/{kept}".encode(), os.fsencode(work), None, _MS_BIND, None))
    os.close(lower)
    os.close(kept)
    os.chdir(folder)
    if os.path.isfile(stale) or os.path.islink(stale):
        os.unlink(stale)


class _CannotPlaceError(OSError):
    """The program cannot be started with the CPUs or limits of the order."""


def restore_default_signals() -> None:
    """Restore default signal handling: Python ignores the first two, a shell's background job the others."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _exec_program(argv: list[bytes], env: dict[bytes, bytes], place: Place, overlay: Overlay | None) -> None:
    """Replace this new process by the program, in a new session."""
    try:
        os.setsid()
        restore_default_signals()
        confine(*place)
        if overlay:
            mount_overlay(*overlay)
    except OSError as error:
        raise _CannotPlaceError(error.errno, error.strerror) from error
    os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell: an argument list


def _start(argv: list[bytes], env: dict[bytes, bytes], place: Place, overlay: Overlay | None) -> tuple[int, bytes]:
    """Start the program; return its process id, and the error answer if it could not start."""
    read_end, write_end = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == supervisor:
                _exec_program(argv, env, place, overlay)
        except OSError as error:
            kind = "misplaced" if isinstance(error, _CannotPlaceError) else "refused"
            os.write(write_end, marshal.dumps((kind, error.errno, error.strerror)))
        finally:
            os._exit(127)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as error_pipe:
        return child, error_pipe.read()


class _Watch:
    """Waits for the program: ``line`` is the socket to envmatrix, ``wake`` gets a byte for every signal."""

    def __init__(self, line: int) -> None:
        self.wake, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.line = line
        self.asked = False
        self.held: set[int] = set()
        self.started = time.monotonic()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._request_end)

    def _request_end(self, *_: object) -> None:
        self.asked = True

    def _read_command(self) -> None:
        """Execute a command of envmatrix: hold, release, or (socket closed) end the program."""
        try:
            command = os.read(self.line, 1)
        except OSError:
            command = b""
        if command not in (HOLD, RELEASE):
            self.asked = True
            return
        if command == HOLD:
            self.held = _stop_all(self.held)
        else:
            _send(signal.SIGCONT, self.held)
        _attempt(os.write, self.line, command)  # if envmatrix was killed, the next read shows it

    def ended(self, child: int, seconds: float, *, heed: bool) -> int | None:
        """Return the program's exit code; None after ``seconds`` or, with ``heed``, on a request to end."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return os.waitstatus_to_exitcode(status)
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or (heed and self.asked):
                return None
            if not pid:
                self.sleep(remaining_s, heed=heed)

    def sleep(self, seconds: float, *, heed: bool) -> None:
        """Sleep until a signal arrives, a child ends or, with ``heed``, a command arrives or the socket closes."""
        readable = select.select([self.wake, *([self.line] if heed else [])], [], [], seconds)[0]
        if self.wake in readable:
            os.read(self.wake, 512)
        if self.line in readable:
            self._read_command()


def _attempt(call: Callable[..., object], *arguments: object) -> None:
    """Call a function, and ignore that the process on the other side has ended."""
    try:  # noqa: SIM105 - contextlib takes milliseconds to load
        call(*arguments)
    except OSError:
        pass


def _end_program(watch: _Watch, child: int, grace_s: float) -> int:
    """End the program by SIGINT, SIGTERM and SIGKILL; with ``grace_s``, send SIGTERM first and wait that long."""
    first = [(signal.SIGTERM, grace_s)] if grace_s else []
    for number, seconds in [
        *first,
        *((stop_signal, GRACE_S) for stop_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)),
    ]:
        _attempt(os.killpg, child, number)
        _send(signal.SIGCONT, _descendants())  # a stopped process receives only SIGKILL
        code = watch.ended(child, seconds, heed=False)
        if code is not None:
            return code
    return -signal.SIGKILL


def _process_states() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of every process."""
    return {int(name): state for name in os.listdir("/proc") if name.isdigit() and (state := _process_state(name))}


def _process_state(pid: str) -> tuple[int, str] | None:
    """Return a process's parent and state; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            state, parent = file.read(4096).rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return int(parent), state.decode()


def _read_ids(pid: int) -> tuple[list[bytes], bool]:
    """Return the ids of a process in every PID namespace it belongs to, and whether it has memory."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return [], False
    return text.partition(b"\nNSpid:")[2].partition(b"\n")[0].split(), b"\nVmSize:" in text


def _is_namespace_init(pid: int) -> bool:
    """Return whether a process is the init process of a PID namespace below this one."""
    ids, _ = _read_ids(pid)
    return len(ids) > 1 and ids[-1] == b"1"


def _descendants() -> dict[int, str]:
    """Return this process's descendants and their states, without container runtimes.

    A runtime is idle while its program runs. Apptainer's forwards signals; if its program has just ended, SIGCONT would
    replace the exit status (128 + SIGCONT).
    """
    own_pid, states, descendants = os.getpid(), _process_states(), {}
    level = [own_pid]
    while level:
        level = [pid for pid, (parent, _) in states.items() if parent in level]
        descendants.update({pid: states[pid] for pid in level})
    for init_pid in [pid for pid in descendants if _is_namespace_init(pid)]:
        runtime = init_pid
        while runtime in descendants:
            runtime = descendants.pop(runtime)[0]
    return {pid: state for pid, (_, state) in descendants.items()}


def _stop_all(known: Collection[int] = ()) -> set[int]:
    """Stop the program and its descendants, including those started in the meantime; return them.

    ``known`` were stopped the last time. They come first, as a list of all processes takes long on a large machine.
    """
    deadline = time.monotonic() + _STOPPED_S
    own_pids = {*known, os.getpid()}
    stopped = {pid for pid in known if (state := _process_state(str(pid))) and state[0] in own_pids}
    _send(signal.SIGSTOP, stopped)
    while time.monotonic() < deadline:
        # A process waiting in the kernel (for a stopped process of a file system) stops when it returns.
        running = [pid for pid, state in _descendants().items() if state not in ("TtZXD" if pid in stopped else "TtZX")]
        if not running:
            break
        _send(signal.SIGSTOP, running)
        stopped.update(running)
        time.sleep(0.001)
    return stopped


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        _attempt(os.kill, pid, number)


def _children() -> list[int]:
    """Return this process's children; their ids are not reused before they are waited for."""
    return [pid for pid, (parent, _) in _process_states().items() if parent == os.getpid()]


def _kill_remaining(watch: _Watch) -> None:
    """Kill all remaining descendants of the program."""
    deadline = time.monotonic() + _REAPED_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        # Stopped, they start no further processes, and reap none: their ids stay theirs.
        _send(signal.SIGKILL, _stop_all().union(_children()))
        watch.sleep(0.05, heed=False)


def _remove_openmp_notes(since: float) -> None:
    """Remove registration files that OpenMP runtimes of this user's ended processes left after ``since``."""
    try:
        notes = [name for name in os.listdir(_SHM) if name.startswith(_NOTE)]
    except OSError:
        return
    living: set[bytes] = set()
    for pid in _process_states() if notes else ():
        ids, has_memory = _read_ids(pid)
        living.update((ids or [str(pid).encode()]) if has_memory else ())
    for name in notes:
        try:
            status = os.stat(f"{_SHM}/{name}")
            is_own = status.st_uid == os.getuid() and status.st_mtime >= since
            if is_own and name[len(_NOTE) :].split("_")[0].encode() not in living:
                os.unlink(f"{_SHM}/{name}")
        except OSError:
            continue


def _read_order(line: int) -> bytes:
    """Return the message from envmatrix: eight bytes of length, then the content."""
    message, size = b"", 8
    while len(message) < size:
        chunk = os.read(line, 1 << 20)
        if not chunk:
            sys.exit(1)  # envmatrix was killed
        message += chunk
        if len(message) >= 8:
            size = 8 + int.from_bytes(message[:8], "big")
    return message[8:]


def _execute_order(line: int) -> bytes:
    """Execute one order; return how the program ended, or why it could not start."""
    argv, env, place, overlay, limit_s, grace_s = marshal.loads(_read_order(line))  # noqa: S302 - it comes from envmatrix itself
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    watch, since = _Watch(line), time.time()
    child, refused = _start(argv, env, place, overlay)
    if refused:
        return refused
    null_file = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # output must end with the program, not with this process
        os.dup2(null_file, number)
    code = watch.ended(child, limit_s, heed=True)
    timed_out, number = code is None and not watch.asked, 0
    if code is None:
        number = len(_descendants())
        code = _end_program(watch, child, grace_s)
    seconds = time.monotonic() - watch.started
    _kill_remaining(watch)
    _remove_openmp_notes(since)
    return marshal.dumps(("ended", code, seconds, timed_out, number))


def main(line: int) -> None:
    """Execute the order that comes through a socket, answer, and end without a cleanup, which takes milliseconds."""
    os.set_inheritable(line, False)
    answer = _execute_order(line)
    _attempt(os.write, line, answer)  # envmatrix may have been killed
    os._exit(0)

"""What stands in for `java` under Spark: puts right what Spark's own start can't, then becomes the real java.

Run as a plain script by the `bin/java` of the made-up JAVA_HOME (java.py), with an interpreter that loads nothing else:

    java_shim.py REAL_JAVA DROP_VECTOR LOG_FILE OWNER_PID [arguments of java ...]

- The kernel kills the JVM when the thread that started it ends: after kill -9 of the loader no JVM stays behind, busy
  with a job that nobody will commit. (It would leave by itself on the end of its stdin, but seconds later, and not
  while something else holds that pipe.) The setting survives exec, and the JVM is the loader's own child, as Spark's
  start scripts exec. A loader that ended while those scripts ran is not the parent any more: then no JVM starts.
- DROP_VECTOR=1 takes out `--add-modules=jdk.incubator.vector`, which Spark 4 always passes and a JRE without that module
  refuses; all that is lost is vector arithmetic of MLlib.
- The JVM's output goes to LOG_FILE. Not that of Spark's launcher, whose output is the command line to be run.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_ORPHAN = 3
"""As in conf/exit_codes.py, which this script cannot import: a JVM is not started, as nobody waits for it any more."""
LAUNCHER_CLASS = "org.apache.spark.launcher.Main"
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
VECTOR_MODULE = "jdk.incubator.vector"


def java_arguments(arguments: list[str], drop_vector: bool) -> list[str]:
    """The arguments for the real java: all of them, but without a demand for the vector module if it is not there."""
    if not drop_vector:
        return arguments
    kept: list[str] = []
    for argument in arguments:
        if argument.startswith("--add-modules=") and VECTOR_MODULE in argument:
            others = [module for module in argument.partition("=")[2].split(",") if module != VECTOR_MODULE]
            kept += [f"--add-modules={','.join(others)}"] if others else []
        else:
            kept.append(argument)
    return kept


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent thread ends. Does nothing where that does not exist."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def send_output_to(path: str, also_stdout: bool) -> None:
    """Append stderr, and stdout if asked, to the file `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    if also_stdout:
        os.dup2(log, 1)
    os.close(log)


def main(argv: list[str]) -> None:
    """Become java. Never returns."""
    java, drop_vector, log, owner_pid, *arguments = argv[1:]
    launcher = LAUNCHER_CLASS in arguments  # the child of a script, and gone in a moment
    send_output_to(log, also_stdout=not launcher)
    die_with_parent()
    # Executors of a local-cluster are children of the JVM, and die with it.
    if not launcher and EXECUTOR_CLASS not in arguments and os.getppid() != int(owner_pid):
        os._exit(EXIT_ORPHAN)
    # Python ignores SIGPIPE, and what is ignored stays so through exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A shell whose terminal is closed sends it to the whole job: who has started the JVM ends it, behind its batch.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(java, [java, *java_arguments(arguments, drop_vector == "1")])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv)

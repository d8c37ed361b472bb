"""`--hosts`: what is refused before another host is asked. Runs over ssh are in multiproc/test_train_ssh.py."""

import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError
from samovar.launcher import over_ssh
from samovar.launcher.over_ssh import NamedHost, read_hosts, started_over_ssh
from samovar.transports.keys import make_key
from samovar.transports.rendezvous import addresses_towards, is_loopback
from tests.multiproc.command import Command
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port


def test_a_name_that_leads_here_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's /etc/hosts has a host's own name."""
    here = socket.getaddrinfo("127.0.1.1", 0, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_name, **_hints: here)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode1\n")
    refused = pytest.raises(InputError, match=r"--master-addr node0: leads to this host alone \(127\.0\.1\.1\)")
    with refused, started_over_ssh(hosts, "ssh", [], "1", "node0", None):
        pytest.fail("it was started")


@pytest.mark.parametrize(
    ("first", "ssh", "sentence"),
    [
        ("localhost", "ssh 'a", '--ssh "ssh \'a": names no program, or has a quote that does not end'),
        ("localhost", " ", "--ssh ' ': names no program, or has a quote that does not end; "),
        ("me@192.0.2.1", "ssh", "names me@192.0.2.1 first, and this is .*; start it there, or name .* first"),
    ],
)
def test_what_cannot_be_is_refused_before_a_host_is_asked(tmp_path: Path, first: str, ssh: str, sentence: str) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"{first}\nlocalhost\n")
    with pytest.raises(InputError, match=sentence), started_over_ssh(hosts, ssh, [], "1", None, None):
        pytest.fail("it was started")


def test_a_first_host_that_is_this_one_or_that_ssh_alone_knows() -> None:
    here = socket.gethostname()
    for name in (here, f"me@{here.partition('.')[0]}.cluster", "localhost", "127.0.1.1", "alias.invalid"):
        over_ssh._require_here(Path("hosts.txt"), name)


def test_hosts_elsewhere_are_not_given_the_loopback() -> None:
    try:
        elsewhere = addresses_towards("192.0.2.1")[0]
    except OSError:
        pytest.skip("needs a route to other hosts")
    assert not is_loopback(elsewhere)
    assert is_loopback(over_ssh._address_towards(["localhost", "127.0.0.2"]))
    for names in (["localhost", "me@192.0.2.1"], ["alias.invalid", "192.0.2.1", "localhost"]):
        assert over_ssh._address_towards(names) == elsewhere
    with pytest.raises(InputError, match=r"--hosts: no way to alias\.invalid is known here \(.*; give --master-addr"):
        over_ssh._address_towards(["localhost", "alias.invalid"])


def test_lines_of_the_file_of_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_bytes(b"\xef\xbb\xbfnode0\nme@node-1 slots = 2  # two\n\n  # none\n10.0.0.3:04\n")  # with Windows' mark
    assert read_hosts(hosts) == [NamedHost("node0", None), NamedHost("me@node-1", 2), NamedHost("10.0.0.3", 4)]


@pytest.mark.parametrize("line", ["a slots=", "a:", "a:0", "a:00", "a slots=4 b", "aslots=4", "-a", "a 4", "::1"])
def test_a_line_that_does_not_say_how_many_workers_is_refused(tmp_path: Path, line: str) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"node0\n{line}\n")
    with pytest.raises(InputError, match=r"hosts\.txt:2: '.*' is not NAME, NAME slots=N or NAME:N"):
        read_hosts(hosts)


@pytest.mark.parametrize("words", [[], ["--key-file", "job.key"]], ids=["by the environment", "by a flag"])
def test_the_others_are_told_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setenv("SAMOVAR_KEY_FILE", "other.key" if words else "job.key")
    hosts, told = tmp_path / "hosts.txt", tmp_path / "told"
    hosts.write_text("localhost\n127.0.0.2\n")
    ssh = f"sh -c 'echo \"$2\" > {told}' sh"
    with started_over_ssh(hosts, ssh, ["train", *words], "1", None, Path(words[1]) if words else None) as (_, place):
        assert place.key_file == Path("job.key")
    assert told.read_text().count("--key-file") == told.read_text().count("--key-file job.key") == 1


def test_an_interrupted_wait_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C comes while the first host is waited for, at a place where nobody can be sent away."""
    started = [(NamedHost("a", None), subprocess.Popen(["sleep", "300"])) for _ in range(2)]
    wait = subprocess.Popen.wait

    def interrupted(self: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        over_ssh._end(started, ("192.0.2.1", 1), None)  # which is not an address of this host
    assert [process.returncode for _, process in started] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize("has_key", [False, True], ids=["open", "with a key"])
def test_a_host_that_comes_when_host_0_has_ended_is_sent_away(
    tmp_path: Path, has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, say: it was still loading, and waits neither for --timeout nor until it is killed."""
    monkeypatch.setattr(over_ssh, "_ENDING_S", 200.0)  # on a busy machine it loads for long
    solver, key_file = write_solver(write_net(tmp_path, tmp_path)), tmp_path / "job.key" if has_key else None
    key: tuple[object, ...] = ()
    if key_file is not None:
        make_key(key_file)
        key = ("--key-file", key_file)
    with reserved_port() as port:
        place = ("--nodes", 2, "--node-rank", 1, "--master-addr", "127.0.0.1", "--master-port", port)
        with Command("train", "--solver", solver, *place, *key, folder=tmp_path) as late:
            process: Any = late.process
            over_ssh._end([(NamedHost("late", None), process)], ("127.0.0.1", port), key_file)
            ended = late.wait()
    assert (ended.return_code, ended.error) == (2, "host 0 has ended before this host came")

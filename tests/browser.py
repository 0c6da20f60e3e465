"""A headless Chromium, driven through its DevTools pipe: https://chromedevtools.github.io/devtools-
protocol/"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import needs


def find():
    """The browser's path. Without a browser the tests are skipped, or fail as in needs.module."""
    for name in "chromium", "chromium-browser", "google-chrome":
        if path := shutil.which(name):
            return path
    print("skipped: no Chromium")
    sys.exit(1 if os.environ.get("SMALLWORLD_REQUIRE_ALL_TESTS") == "1" else needs.SKIPPED)


class Browser:
    """One page. `problems` keeps the console's errors, uncaught exceptions, refused loads, and requests
    of other schemes than file: and data:."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        # Chromium reads commands from file 3 and writes answers to file 4.
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" 3<&{command_read} 4>&{answer_write}', find(),
             "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars",
             f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=[command_read, answer_write], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(command_read)
        os.close(answer_write)
        self.commands, self.answers = command_write, os.fdopen(answer_read, "rb")
        self.buffer, self.number, self.problems, self.loaded = b"", 0, [], False
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(20)
        except (OSError, EOFError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        self.answers.close()
        self.profile.cleanup()

    def receive(self):
        while b"\0" not in self.buffer:
            part = self.answers.read1(1 << 20)
            if not part:
                raise EOFError("Chromium ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def notice(self, event):
        name, what = event["method"], event.get("params", {})
        if name == "Page.loadEventFired":
            self.loaded = True
        elif name == "Runtime.exceptionThrown":
            self.problems.append(what["exceptionDetails"])
        elif name == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
            self.problems.append(what["args"])
        elif name == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.problems.append(what["entry"])
        elif name == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(url)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.notice(answer)

    def open(self, path, width=1280, height=900, dark=False):
        self.problems.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.dark(dark)
        self.loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self.notice(self.receive())

    def dark(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key):
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9}[key]
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=code)

    def wait(self, script, seconds=300):
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.05)
        return value

    def screenshot(self, path):
        import base64
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

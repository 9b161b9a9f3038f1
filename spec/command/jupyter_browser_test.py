# SPDX-License-Identifier: MIT
"""A notebook of perilune's kernel in a real browser (pip install notebook playwright; Debian's chromium).

    build/bin/perilune kernel install --prefix ENV && ENV/bin/python spec/command/jupyter_browser_test.py [CHROMIUM]

Types cells, as hands do, and reads what the page shows: values, printed text, errors, pictures, tables, progress,
completion by Tab, inspection by Shift-Tab, an interrupted loop, and that the kernel goes on after it.
Exit 77 where a part is missing.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path = [p for p in sys.path if not p.endswith("spec/command")]
try:
    import notebook  # noqa: F401
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from playwright.sync_api import sync_playwright
except ImportError as problem:
    print("skipped:", problem)
    sys.exit(77)
try:
    KernelSpecManager().get_kernel_spec("perilune")
except NoSuchKernel:
    print("skipped: there is no kernel perilune")
    sys.exit(77)
chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
if not chromium:
    print("skipped: chromium is missing")
    sys.exit(77)

folder = tempfile.mkdtemp()
env = dict(os.environ, HOME=folder, JUPYTER_RUNTIME_DIR=folder + "/runtime")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


port = free_port()
cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": ""}
book = {
    "cells": [cell],
    "metadata": {"kernelspec": {"display_name": "perilune", "language": "lua", "name": "perilune"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
os.mkdir(folder + "/books")
with open(folder + "/books/a.ipynb", "w") as f:
    json.dump(book, f)
server = subprocess.Popen(
    [sys.executable, "-m", "notebook", "--no-browser", "--allow-root", "--ServerApp.token=t", "--ServerApp.port=%d" % port,
     "--ServerApp.root_dir=" + folder + "/books"],
    env=env, stdout=open(folder + "/server.log", "w"), stderr=subprocess.STDOUT,
)


def serves():
    for _ in range(240):
        try:
            urllib.request.urlopen("http://127.0.0.1:%d/api/status?token=t" % port, timeout=2)
            return True
        except OSError:
            time.sleep(0.25)
    return False


count = 0


def check(what, holds, shown=""):
    global count
    count += 1
    if not holds:
        raise AssertionError("%s: the page shows %r" % (what, shown))
    print("ok", what, flush=True)


def until(holds, wait=60):
    """Waits until holds() is true; what it gave last."""
    deadline = time.time() + wait
    result = holds()
    while not result and time.time() < deadline:
        time.sleep(0.05)
        result = holds()
    return result


def run(page, source, wait=60):
    """Types a cell below the last one, runs it and gives its output area once its prompt has a number."""
    cells = page.locator(".jp-CodeCell")
    at = cells.count() - 1
    editor = cells.nth(at).locator(".cm-content")
    editor.click()
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")
    prompt = cells.nth(at).locator(".jp-InputPrompt")
    if until(lambda: prompt.inner_text().strip("[]: ").isdigit() and cells.count() > at + 1, wait):
        time.sleep(0.2)
        return cells.nth(at)
    raise AssertionError("no end of %r, prompt %r" % (source, prompt.inner_text()))


try:
    if not serves():
        print(open(folder + "/server.log").read())
        sys.exit("the server of notebooks does not start")
    with sync_playwright() as p:
        try:
            browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        except Exception as problem:  # no browser starts here
            print("skipped:", str(problem).split("\n")[0])
            sys.exit(77)
        page = browser.new_page(viewport={"width": 1200, "height": 1600})
        page.goto("http://127.0.0.1:%d/notebooks/a.ipynb?token=t" % port)
        page.locator(".jp-CodeCell .cm-content").first.wait_for(timeout=60000)
        name = page.locator(".jp-KernelName, .jp-Toolbar-kernelName").first
        name.wait_for(timeout=30000)
        until(lambda: "perilune" in name.inner_text().lower())
        check("the kernel's name stands above", "perilune" in name.inner_text().lower(), name.inner_text())
        # a cell that is run before the kernel has answered for the first time is run by nobody, whatever the kernel
        status = page.locator(".jp-Notebook-ExecutionIndicator").first
        until(lambda: status.get_attribute("data-status") == "idle")

        text = run(page, "1 + 1").inner_text()
        check("a value", "\n2" in text, text)
        out = run(page, "x = T.ones(2, 3); print(x:sum():item()); x")
        text = out.locator(".jp-OutputArea").inner_text()
        check("printed text and a tensor", "6.0" in text and "f32[2,3] cpu" in text, text)
        text = run(page, "x:view(5)").locator(".jp-OutputArea").inner_text()
        check("an error, with the input's line", "view" in text and "line 1" in text, text)
        text = run(page, "for i = 1, 3 print(i) end").locator(".jp-OutputArea").inner_text()
        check("an error of syntax, with its hint", "for i = 1, n do" in text, text)
        out = run(page, "display(T.plot { 1, 4, 2 })")
        picture = out.locator(".jp-OutputArea img")
        picture.wait_for(timeout=10000)
        width = picture.evaluate("i => i.decode().then(() => i.naturalWidth)")
        check("a picture that the browser decodes", width > 100, width)
        out = run(page, "net = nn.Sequential(nn.Linear(3, 1)); opt = optim.SGD(net:parameters(), { lr = 0.1 })\n"
                        "T.fit(net, { train = { { T.ones(2, 3), T.ones(2, 1) } }, optimizer = opt,"
                        " loss = nn.F.mse_loss, epochs = 3 })")
        text = out.locator(".jp-OutputArea").inner_text()
        check("a training's lines", "epoch\tloss\tlr" in text and "run: epoch 3, step 3" in text, text)
        drawn = out.locator(".jp-OutputArea svg polyline, .jp-OutputArea svg path").count()
        check("and their curve", drawn > 0, drawn)

        # completion: Tab after a prefix that has one end
        cells = page.locator(".jp-CodeCell")
        editor = cells.last.locator(".cm-content")
        editor.click()
        page.keyboard.type("T.log_softm")
        page.keyboard.press("Tab")
        deadline = time.time() + 20
        while time.time() < deadline and "T.log_softmax" not in editor.inner_text():
            list_of_ends = page.locator(".jp-Completer .jp-Completer-item")
            if list_of_ends.count() and list_of_ends.first.is_visible():
                page.keyboard.press("Enter")
            time.sleep(0.3)
        check("Tab completes", "T.log_softmax" in editor.inner_text(), editor.inner_text())
        page.keyboard.press("Shift+Tab")
        tip = page.locator(".jp-Tooltip").first
        tip.wait_for(timeout=20000)
        check("Shift-Tab shows help", "log_softmax" in tip.inner_text(), tip.inner_text())
        page.keyboard.press("Escape")
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")

        # an endless loop, interrupted from the page, and the kernel goes on
        cells = page.locator(".jp-CodeCell")
        at = cells.count() - 1
        cells.nth(at).locator(".cm-content").click()
        page.keyboard.insert_text("seen = 1; while true do seen = seen + 1 end")
        page.keyboard.press("Shift+Enter")
        time.sleep(1.5)
        page.evaluate("""async () => {
          const api = '/api/kernels', at = '?token=t'
          const list = await (await fetch(api + at)).json()
          const xsrf = document.cookie.match(/_xsrf=([^;]*)/)
          await fetch(api + '/' + list[0].id + '/interrupt' + at,
            { method: 'POST', headers: xsrf ? { 'X-XSRFToken': xsrf[1] } : {} })
        }""")
        deadline = time.time() + 20
        while time.time() < deadline and "interrupt" not in cells.nth(at).inner_text().lower():
            time.sleep(0.1)
        text = cells.nth(at).inner_text()
        check("a loop is interrupted", "interrupt" in text.lower(), text)
        text = run(page, "seen > 1").inner_text()
        check("and what it did is kept", "true" in text, text)
        browser.close()
    print("%d checks" % count)
finally:
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
    shutil.rmtree(folder, ignore_errors=True)

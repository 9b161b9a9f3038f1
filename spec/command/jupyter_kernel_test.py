# SPDX-License-Identifier: MIT
"""Jupyter's own tests of kernels (pip install jupyter_kernel_test), for perilune's.

    build/bin/perilune kernel install --prefix ENV && ENV/bin/python spec/command/jupyter_kernel_test.py

Skipped where jupyter_kernel_test or the kernel is missing. --name NAME: of the kernel.
"""
import sys
import unittest

NAME = "perilune"
if "--name" in sys.argv:
    at = sys.argv.index("--name")
    NAME = sys.argv[at + 1]
    del sys.argv[at : at + 2]
sys.path = [p for p in sys.path if not p.endswith("spec/command")]  # this file has the package's name

try:
    import jupyter_kernel_test as jkt
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    KernelSpecManager().get_kernel_spec(NAME)
except ImportError as problem:
    print("skipped:", problem)
    sys.exit(77)
except NoSuchKernel:
    print("skipped: there is no kernel", NAME)
    sys.exit(77)


class Kernel(jkt.KernelTests):
    kernel_name = NAME
    language_name = "lua"
    file_extension = ".lua"
    code_hello_world = "print('hello, world')"
    code_stderr = "io.stderr:write('oops\\n')"
    completion_samples = [
        {"text": "T.softma", "matches": {"softmax"}},
        {"text": "coroutine.wr", "matches": {"wrap"}},
        {"text": "x = T.randn(3):logsu", "matches": {"logsumexp"}},
        {"text": ":wh", "matches": {"who"}},
    ]
    complete_code_samples = ["x = 1", "print(2)", "for i = 1, 2 do print(i) end", "?T.relu", "1 + 1", "!ls", ""]
    incomplete_code_samples = ["for i = 1, 2 do", "print(", "function f()\n  return {", "x = [[a"]
    invalid_code_samples = ["x = = 1", "end", "print('a)", "1 +* 2"]
    code_page_something = "?T.relu"
    code_generate_error = "error('no')"
    code_execute_result = [
        {"code": "1 + 2 + 3", "result": "6"},
        {"code": "local a = 12; a * 2", "result": "24"},
        {"code": "T.tensor { 1, 2 }", "result": "{1., 2.}  -- f32[2] cpu"},
        {"code": "'1' .. '2'", "result": '"12"'},
        {"code": "1 + 2 + 3 + 12", "result": "18"},
    ]
    code_display_data = [{"code": "display(T.plot { 1, 2, 3 })", "mime": "image/png"},
                         {"code": "display(1)", "mime": "text/plain"}]
    code_history_pattern = "1 + 2 + ?"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "T.softmax"
    code_clear_output = "clear_output()"


class Welcome(jkt.IopubWelcomeTests):
    kernel_name = NAME
    support_iopub_welcome = True


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: MIT
# What OpenAI's own client makes of perilune serve. Run: python3 openai_client.py BASE_URL; prints "all right" at the end.
import sys
from concurrent.futures import ThreadPoolExecutor

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model


def whole(prompt, n, **more):
    r = client.completions.create(model=model, prompt=prompt, max_tokens=n, temperature=0, **more)
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    return r.choices[0].text


def pieces(prompt, n):
    stream = client.completions.create(model=model, prompt=prompt, max_tokens=n, temperature=0, stream=True)
    return "".join(p.choices[0].text for p in stream if p.choices)


def chat(text, n, stream):
    messages = [{"role": "user", "content": text}]
    r = client.chat.completions.create(model=model, messages=messages, max_tokens=n, temperature=0, stream=stream)
    if not stream:
        assert r.choices[0].message.role == "assistant"
        return r.choices[0].message.content
    return "".join(p.choices[0].delta.content or "" for p in r if p.choices)


alone = {(i % 5, i % 7): whole("fox " * (i % 5 + 1), 5 * (i % 7) + 3) for i in range(35)}


def one(i):
    f = whole if i % 2 else pieces
    assert f("fox " * (i % 5 + 1), 5 * (i % 7) + 3) == alone[i % 5, i % 7], i


with ThreadPoolExecutor(16) as pool:
    list(pool.map(one, range(140)))
assert chat("one", 8, False) == chat("one", 8, True)
a = client.completions.create(model=model, prompt="the", max_tokens=9, temperature=1, seed=4).choices[0].text
b = client.completions.create(model=model, prompt="the", max_tokens=9, temperature=1, seed=4).choices[0].text
assert a == b
e = client.embeddings.create(model=model, input=["one two", "three"])
assert len(e.data) == 2 and len(e.data[0].embedding) > 1

stream = client.completions.create(model=model, prompt="the", max_tokens=200, temperature=1, stream=True)
next(iter(stream))
stream.close()
for bad in [dict(model=model, prompt="x", max_tokens=-1), dict(model=model, prompt="x", n=3), dict(model=model, prompt=[])]:
    try:
        client.completions.create(**bad)
    except openai.BadRequestError as error:
        assert error.body["type"] == "invalid_request_error"
    else:
        raise AssertionError(bad)
print("all right")

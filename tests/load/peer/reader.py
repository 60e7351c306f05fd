"""A serving benchmark as they are commonly written: asyncio, aiohttp, a session
and a task for each request, and json.loads for every event as it comes in. It is
run beside the load generator, to say how much of what such a client reports is
the client. Reads a JSON object from its first argument, writes one to stdout."""

import asyncio
import json
import resource
import sys
import time

import aiohttp


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def one(config, number, seen):
    body = {
        "model": "m",
        "prompt": config["prompt"],
        "max_tokens": config["output"],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream = {"ID": f"peer-{number}", "Sent": 0, "Events": []}
    async with aiohttp.ClientSession() as session:
        stream["Sent"] = time.monotonic_ns()
        async with session.post(
            config["url"] + "/v1/completions",
            json=body,
            headers={"X-Request-Id": stream["ID"]},
        ) as response:
            if response.status != 200:
                raise RuntimeError(f"status {response.status}")
            async for line in response.content:
                line = line.strip()
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    continue
                event = json.loads(payload)
                if event["choices"] and event["choices"][0]["text"]:
                    stream["Events"].append(time.monotonic_ns())
    seen.append(stream)


async def slot(config, first, seen, stop):
    """One of a closed loop's slots: a request behind the other."""
    await asyncio.sleep(config["spread"] * first / config["streams"])
    number = first
    while time.monotonic() < stop:
        await one(config, number, seen)
        number += config["streams"]


async def run(config):
    seen = []
    stop = time.monotonic() + config["seconds"]
    await asyncio.gather(*(slot(config, i, seen, stop) for i in range(config["streams"])))
    return seen


def main():
    config = json.loads(sys.argv[1])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    before = cpu_seconds()
    seen = asyncio.run(run(config))
    out = {
        "CPU": cpu_seconds() - before,
        "Requests": len(seen),
        "Events": sum(len(s["Events"]) for s in seen),
        "Streams": seen if config["times"] else [],
    }
    json.dump(out, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

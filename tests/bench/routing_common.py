"""What the benches of a whole cluster share: loads in a closed loop, what the workers computed and found,
and the spread of a ratio over its rounds."""
import queue
import threading

from engine_room_common import REQUEST_S, Timed, median
from _forge import counters, status_port

STATUS = ["--status-port", "0"]


def closed_loop(port, requests, width):
    """Sends the requests in order, `width` of them at a time; the streams, in order of their ending."""
    todo, done, errors = queue.SimpleQueue(), [], []
    for request in requests:
        todo.put(request)

    def work():
        try:
            while True:
                done.append(Timed(port, todo.get_nowait()).wait())
        except queue.Empty:
            pass
        except Exception as why:  # pylint: disable=broad-except
            errors.append(why)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(REQUEST_S)
        assert not thread.is_alive(), "a load did not end"
    if errors:
        raise errors[0]
    return done


def took(streams):
    """Seconds from the first request to the last token."""
    return max(s.times[-1] for s in streams) - min(s.sent for s in streams)


def computed(cluster):
    """Prompt tokens that all workers together have computed so far; they need --status-port 0."""
    return sum(counters(status_port(worker))["engine_prompt_tokens_total"]
               for worker in cluster.workers.values())


def found(cluster):
    """Tokens asked for and found in the caches of all workers so far."""
    workers = cluster.state()["workers"]
    return sum(w["query_tokens"] for w in workers), sum(w["hit_tokens"] for w in workers)


def spread(values, digits=2):
    """The median, and from where to where."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def record_of(cluster):
    """What the router remembers of the request that ended last."""
    return cluster.state()["recent"][0]

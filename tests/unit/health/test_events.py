import time

import pytest
import zmq

from aphrodited.health.events import EventPublisher, LedgerTail
from aphrodited.mq.codec import decode_event
from aphrodited.mq.messages import EngineEvent, EventKind
from aphrodited.supervision.ledger import Ledger, Reset, stamp


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def publisher(context, paths):
    publisher = EventPublisher(context, paths.events_endpoint)
    yield publisher
    publisher.close()


def test_a_subscriber_gets_what_is_published(context, publisher, paths):
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(paths.events_endpoint)
    event = EngineEvent(EventKind.ENGINE_DEAD, "demo", 3, 42, "killed by SIGKILL")
    until_s = time.monotonic() + 10
    while not subscriber.poll(20) and time.monotonic() < until_s:
        publisher.publish(event)  # until the subscription has arrived
    assert decode_event(subscriber.recv()) == event
    subscriber.close(linger=0)


def test_publishing_without_a_subscriber_or_to_a_stalled_one_does_not_block(context, publisher, paths):
    stalled = context.socket(zmq.SUB)
    stalled.set_hwm(1)
    stalled.subscribe(b"")
    stalled.connect(paths.events_endpoint)
    for _ in range(5000):
        publisher.publish(EngineEvent(EventKind.ENGINE_READY, "demo", 1, 42, "x" * 1000))
    stalled.close(linger=0)


def test_the_socket_file_of_a_killed_monitor_is_no_obstacle(context, paths):
    address = paths.runtime_dir / "events.sock"
    address.write_bytes(b"")
    publisher = EventPublisher(context, paths.events_endpoint)
    assert address.is_socket()
    publisher.close()


def test_what_is_in_the_ledger_at_the_start_is_no_news(paths):
    ledger = Ledger(paths.ledger)
    ledger.append(Reset(**stamp("a")))
    assert LedgerTail(ledger).news() == []


def test_news_comes_once_and_in_order(paths):
    ledger = Ledger(paths.ledger)
    tail = LedgerTail(ledger)
    first, second = Reset(**stamp("a")), Reset(**stamp("b"))
    ledger.append(first)
    ledger.append(second)
    assert tail.news() == [first, second]
    assert tail.news() == []


def test_news_is_not_lost_when_a_new_file_is_begun(paths):
    ledger = Ledger(paths.ledger)
    tail = LedgerTail(ledger)
    ledger.append(Reset(**stamp("a")))
    tail.news()
    before = Reset(**stamp("b"))
    ledger.append(before)
    paths.ledger.rename(ledger.older_path)
    after = Reset(**stamp("c"))
    ledger.append(after)
    assert tail.news() == [before, after]

"""The web server's worker with bounds that a test can wait for."""

from config.gunicorn_worker import Worker
from config.pace import Pace


class Impatient(Worker):
    head = Pace(grace=0.5, rate=1000.0, silence=0.5)
    body = Pace(grace=1.0, rate=1024.0 * 1024, silence=30.0)

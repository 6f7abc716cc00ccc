"""A worker in Python: SAYIIR_URI=… worker.py

It does jobs of the task count_words: {"text": "to be or not"} gives {"words": 4}. Needs psycopg 3.
"""

import os

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


def count(data):
    return {"words": len(data["text"].split())}


# In autocommit mode the claim is committed before the work begins, as it has to be.
with psycopg.connect(os.environ["SAYIIR_URI"], autocommit=True, row_factory=namedtuple_row) as db:
    while True:
        for job in db.execute("SELECT * FROM sayiir.job_claim('py', '{count_words}', wait => '10 s')"):
            try:
                statement, answer = "SELECT sayiir.job_complete(%s, %s, %s)", Jsonb(count(job.input))
            except Exception as error:
                statement, answer = "SELECT * FROM sayiir.job_fail(%s, %s, 'failed', %s)", repr(error)
            db.execute(statement, [job.job_id, job.epoch, answer])

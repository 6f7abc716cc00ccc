SELECT * FROM sayiir.job_enqueue('bench', '{"n": 1, "text": "a payload of about one hundred bytes, as small jobs have: an id, a name and a path or two"}');

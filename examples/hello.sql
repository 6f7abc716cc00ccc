-- Hello, world: a workflow of one step, run in psql. `make psql`, then \i examples/hello.sql
SELECT * FROM sayiir.workflow_define('{"name": "hello", "steps": [{"key": "greet", "task": "greet"}]}');

SELECT * FROM sayiir.workflow_start('hello', '{"name": "Ada"}', workflow_id => 'hello-1');

CREATE FUNCTION greet(input jsonb) RETURNS jsonb
LANGUAGE sql AS $$ SELECT jsonb_build_object('text', 'Hello, ' || (input ->> 'name')) $$;
SELECT sayiir.job_run('greet', 'greet');

SELECT sayiir.workflow_result('hello-1');

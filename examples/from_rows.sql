-- Work that follows from rows: psql -f from_rows.sql. What a trigger does commits or rolls back with the row.
SELECT name, disposition FROM sayiir.workflow_define('{"name": "order", "result": "ship", "steps": [
  {"key": "paid", "event": "payment_received"},
  {"key": "ship", "task": "ship", "after": ["paid"], "input": {"order": "$.input.id", "amount": "$.steps.paid.output.amount"}}]}');

CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL);
CREATE TABLE payments (id bigint PRIMARY KEY, workflow_id text NOT NULL, amount numeric NOT NULL);
CREATE TABLE pictures (id bigint PRIMARY KEY, file text NOT NULL);

-- A row starts a workflow: its id is order-<id>, its input the row.
CREATE TRIGGER start_order AFTER INSERT ON orders
FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_start('order', 'id');

-- A row is an event to a workflow that waits for it, now or later.
CREATE TRIGGER send_payment AFTER INSERT ON payments
FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_send_event('payment_received', 'workflow_id', '{"event_key_column": "id"}');

-- A row enqueues a job, by a function of your own. SECURITY DEFINER: the function's owner may enqueue, whoever inserts need not.
CREATE FUNCTION enqueue_thumbnail() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM sayiir.job_enqueue('thumbnail', jsonb_build_object('file', NEW.file), idempotency_key => 'picture-' || NEW.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER enqueue_thumbnail AFTER INSERT ON pictures
FOR EACH ROW EXECUTE FUNCTION enqueue_thumbnail();

-- An application that may write these tables, and knows nothing of the engine.
CREATE ROLE shop;
GRANT INSERT ON orders, payments, pictures TO shop;

SET ROLE shop;
INSERT INTO orders VALUES (7, 'Ada');
INSERT INTO payments VALUES (1, 'order-7', 12.50);
INSERT INTO pictures VALUES (1, 'cat.png');
RESET ROLE;

-- A worker ships it.
SELECT task, input, sayiir.job_complete(job_id, epoch, '{"parcel": 42}') AS answer
FROM sayiir.job_claim('from_rows.sql', '{ship}');
SELECT sayiir.workflow_result('order-7');
SELECT task, input, idempotency_key FROM sayiir.job_claim('from_rows.sql', '{thumbnail}');

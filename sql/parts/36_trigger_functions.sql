-- Trigger functions: who may create a trigger with them needs EXECUTE, who writes the row needs nothing.

CREATE FUNCTION sayiir.trigger_start() RETURNS trigger
AS 'MODULE_PATHNAME', 'trigger_start_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.trigger_start() IS 'For CREATE TRIGGER … AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_start(''order'', ''id''): starts workflow order in the same transaction, with input to_jsonb(NEW) and workflow_id order-<id>; if there is one with this id, nothing happens. The right of the table''s owner counts, not that of whoever writes the row. A third argument, a JSON object, may name on_conflict (as workflow_start; default use_existing) and organization_column. Errors: trigger.invalid, definition.not_found, scope.denied.';

CREATE FUNCTION sayiir.trigger_send_event() RETURNS trigger
AS 'MODULE_PATHNAME', 'trigger_send_event_wrapper'
LANGUAGE c VOLATILE PARALLEL UNSAFE @HOT@;
COMMENT ON FUNCTION sayiir.trigger_send_event() IS 'For CREATE TRIGGER … AFTER INSERT ON payments FOR EACH ROW EXECUTE FUNCTION sayiir.trigger_send_event(''paid'', ''workflow_id''): sends event paid in the same transaction to the workflow that the column names, with payload to_jsonb(NEW). The right of the table''s owner counts, not that of whoever writes the row. A third argument, a JSON object, may name event_key_column and organization_column. Errors: trigger.invalid, scope.denied.';

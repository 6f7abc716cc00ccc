-- An effect in the same database happens exactly once: begun, done and finished in one transaction. \i examples/effect.sql
CREATE TABLE account (owner text PRIMARY KEY, balance int NOT NULL);
INSERT INTO account VALUES ('Ada', 100);

-- NULL: it was done before, or somebody is doing it.
CREATE FUNCTION pay(order_id text, amount int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    effect sayiir.effect_begun;
    left_over int;
BEGIN
    SELECT * INTO effect
    FROM sayiir.effect_begin('account.pay', order_id, 'irreversible_write', 'pay', input => to_jsonb(amount));
    IF effect.decision = 'run' THEN
        UPDATE account SET balance = balance - amount WHERE owner = 'Ada' RETURNING balance INTO left_over;
        PERFORM FROM sayiir.effect_finish(effect.id, effect.lease_owner, effect.lease_epoch, effect.version, to_jsonb(left_over));
    END IF;
    RETURN left_over;
END
$$;

SELECT pay('order-1', 30);
SELECT pay('order-1', 30);
SELECT pay('order-2', 50);
SELECT logical_key, status, output FROM sayiir.effect_get_by_key('account.pay', 'order-1');
SELECT balance FROM account;

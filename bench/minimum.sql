-- The hand-written minimum: tables of the same shape, and no engine. What two plain prepared statements cost that write the
-- same rows as a claim and a completion.

DROP SCHEMA IF EXISTS minimum CASCADE;
CREATE SCHEMA minimum;
CREATE TABLE minimum.job (LIKE sayiir.job INCLUDING ALL);
CREATE TABLE minimum.job_ready (LIKE sayiir.job_ready INCLUDING ALL);
CREATE TABLE minimum.job_lease (LIKE sayiir.job_lease INCLUDING ALL);
CREATE TABLE minimum.job_end (LIKE sayiir.job_end INCLUDING ALL);
CREATE SEQUENCE minimum.ready_seq;
CREATE SEQUENCE minimum.history_seq;

SELECT job_id, epoch FROM sayiir.job_claim('worker', '{bench}', tags => '{mine}') \gset
SELECT sayiir.job_complete(:job_id, :epoch, '{"done": true}');

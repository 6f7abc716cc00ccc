// A worker in Node: SAYIIR_URI=… node worker.mjs
// It does jobs of the task count_words: {"text": "to be or not"} gives {"words": 4}. Needs pg (npm install pg).
import pg from "pg";

const count = ({ text }) => ({ words: text.split(/\s+/).filter(Boolean).length });

const db = new pg.Client({ connectionString: process.env.SAYIIR_URI });
await db.connect();
for (;;) {
  const claimed = await db.query("SELECT * FROM sayiir.job_claim('js', '{count_words}', wait => '10 s')");
  for (const { job_id, epoch, input } of claimed.rows) { // epoch is a string: a bigint need not fit into a number
    let statement, answer;
    try {
      [statement, answer] = ["SELECT sayiir.job_complete($1, $2, $3)", JSON.stringify(count(input))];
    } catch (error) {
      [statement, answer] = ["SELECT * FROM sayiir.job_fail($1, $2, 'failed', $3)", error.message];
    }
    await db.query(statement, [job_id, epoch, answer]);
  }
}

//! Three processes on one database: each effect runs exactly once. The test starts its own binary again as the workers.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};

use agent_effects::{EffectFailure, EffectOutcome, EffectStatus, EffectStore, Runtime, WorkerId};
use agent_effects_store::ListQuery;
use effects_conformance::harness::{database, shared_store};

const SPEC: &str = "EFFECTS_WORKER";
const EFFECTS: u32 = 150;
const WORKERS: usize = 3;
const ORGANIZATION: &str = "processes";

/// A worker process: every effect in the same order as the others; each action is a line in a log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker() {
    let Ok(spec) = std::env::var(SPEC) else {
        return;
    };
    let [database, folder, name] = spec.split('|').collect::<Vec<_>>()[..] else {
        panic!("{SPEC} is {spec}");
    };
    let runtime = Runtime::builder(shared_store(database, ORGANIZATION).await)
        .worker_id(WorkerId::new(name))
        .build();
    let folder = Path::new(folder);
    std::fs::write(folder.join(format!("ready-{name}")), b"").unwrap();
    while (0..WORKERS).any(|n| !folder.join(format!("ready-worker-{n}")).exists()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for n in 0..EFFECTS {
        let log = folder.join("log");
        let line = format!("{n} {name}\n");
        let outcome = runtime
            .effect("job.run", n)
            .run(move |_| {
                let (log, line) = (log.clone(), line.clone());
                async move {
                    let mut file = std::fs::OpenOptions::new()
                        .create(true)
                        .append(true)
                        .open(log)
                        .unwrap();
                    file.write_all(line.as_bytes()).unwrap();
                    Ok::<_, EffectFailure>(n)
                }
            })
            .await
            .unwrap();
        assert!(
            matches!(
                outcome,
                EffectOutcome::Committed(_) | EffectOutcome::InProgress { .. }
            ),
            "{name}: effect {n}: {outcome:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_runs_once() {
    let options = database().await;
    let database = options.get_database().unwrap();
    let folder = std::env::temp_dir().join(format!("effects-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut children: Vec<Child> = (0..WORKERS)
        .map(|n| {
            Command::new(std::env::current_exe().unwrap())
                .args(["worker", "--exact", "--nocapture"])
                .env(SPEC, format!("{database}|{}|worker-{n}", folder.display()))
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "a worker failed");
    }
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut runs = vec![0; EFFECTS as usize];
    let mut runners = std::collections::BTreeSet::new();
    for line in log.lines() {
        let (n, name) = line.split_once(' ').unwrap();
        runs[n.parse::<usize>().unwrap()] += 1;
        runners.insert(name);
    }
    assert_eq!(runs, vec![1; EFFECTS as usize]);
    assert!(runners.len() > 1, "only {runners:?} worked");
    let store = shared_store(database, ORGANIZATION).await;
    let records = store
        .list(ListQuery::statuses([]).limit(1_000))
        .await
        .unwrap();
    assert_eq!(records.len(), EFFECTS as usize);
    assert!(
        records
            .iter()
            .all(|one| one.status == EffectStatus::Committed && one.attempt_count == 1)
    );
}

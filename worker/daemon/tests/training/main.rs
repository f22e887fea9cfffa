//! Whole workers on libtorch in this process, on the toy checkpoint, with a coordinator that does what the test says.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

#[path = "../../../../tests/worker/daemon/cluster.rs"]
#[allow(dead_code, reason = "the tests of the worker use it")]
mod cluster;
#[path = "../../../../tests/worker/daemon/coordinator.rs"]
#[allow(dead_code, reason = "the tests of the worker use the rest of it")]
mod coordinator;
#[path = "../../../../tests/worker/daemon/files.rs"]
mod files;
#[path = "../../../../tests/worker/daemon/history.rs"]
#[allow(dead_code, reason = "the tests of the worker use the rest of it")]
mod history;
#[path = "../../../../tests/worker/daemon/support.rs"]
mod support;

use ringtune_proto::v1::RankPhase;
use ringtune_shared::{
    daemon::{lifecycle::Shutdown, listen::Launch},
    ids::JobId,
    job::JobSpec,
};
use ringtune_worker::{daemon::run_with, engine::Threads};
use ringtune_worker_daemon::LIBTORCH;
use safetensors::SafeTensors;
use tempfile::TempDir;

use coordinator::{Coordinator, Rank, Session};
use support::{fixture, in_time, job, settings};

struct Cluster {
    coordinator: Coordinator,
    sessions: Vec<Session>,
    shutdown: Shutdown,
    _state: Vec<TempDir>,
}

async fn cluster(workers: usize) -> Cluster {
    let mut coordinator = Coordinator::start().await;
    let shutdown = Shutdown::default();
    let (mut sessions, mut folders) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let state = tempfile::tempdir().unwrap();
        tokio::spawn(run_with(settings(&coordinator, &state), Launch::default(), shutdown.clone(), || {
            (LIBTORCH.start)(Threads::anywhere(1))
        }));
        folders.push(state);
        sessions.push(coordinator.accept().await);
    }
    Cluster { coordinator, sessions, shutdown, _state: folders }
}

impl Cluster {
    fn job(&self, steps: u64, world_size: u32) -> JobSpec {
        let mut spec = job(&self.coordinator, steps, world_size);
        spec.textual_inversion_mut().unwrap().train.resolution = 64;
        spec.textual_inversion_mut().unwrap().data.images =
            fixture("concepts/green-star").display().to_string();
        spec
    }

    async fn learn(&mut self, spec: &JobSpec, precision: &str) -> Vec<u8> {
        let id = JobId::new();
        let members: Vec<_> = self.sessions.iter().map(Session::member).collect();
        for (rank, session) in self.sessions.iter().enumerate() {
            let rank = Rank { job: id, epoch: 1, members: &members, rank, spec };
            session.assign_in(rank, precision).await;
        }
        for session in &mut self.sessions {
            session.until(RankPhase::Ready).await;
        }
        for session in &self.sessions {
            session.start(id).await;
        }
        for session in &mut self.sessions {
            let (_, steps) = session.until(RankPhase::Finished).await;
            assert!(steps.iter().all(|step| step.loss > 0.0 && step.loss < 10.0), "{steps:?}");
        }
        for session in &mut self.sessions {
            session.let_go(id).await;
        }
        self.coordinator.kept(id, "learned_embeds.safetensors").unwrap()
    }

    /// Whether this processor computes in bf16; where it does not, that is said.
    fn has_bf16(&self) -> bool {
        let has = self.sessions[0].hello.capabilities.as_ref().unwrap().bf16;
        if !has {
            eprintln!("SKIPPED in bf16: this processor has no instructions for it");
        }
        has
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_toy_checkpoint_trains_and_stays_loaded() {
    in_time(Box::pin(async {
        let mut cluster = cluster(1).await;
        let capabilities = cluster.sessions[0].hello.capabilities.clone().unwrap();
        assert_eq!(capabilities.libtorch_version, "2.13.0");
        let spec = cluster.job(3, 1);
        // The second finds the checkpoint loaded, and learns the same.
        let first = cluster.learn(&spec, "no").await;
        assert!(cluster.learn(&spec, "no").await == first);
        let tensors = SafeTensors::deserialize(&first).unwrap();
        assert_eq!(tensors.tensor("<thing>").unwrap().shape(), [2, 64]);
        cluster.shutdown.soft.cancel();
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_workers_learns_the_same_bytes_in_both_precisions() {
    in_time(Box::pin(async {
        let mut learned = [Vec::new(), Vec::new()];
        for workers in 1..=3 {
            let mut cluster = cluster(workers).await;
            let spec = cluster.job(3, 6);
            for (precision, learned) in ["no", "bf16"].into_iter().zip(&mut learned) {
                if precision == "no" || cluster.has_bf16() {
                    learned.push(cluster.learn(&spec, precision).await);
                }
            }
            cluster.shutdown.soft.cancel();
        }
        for files in &learned {
            assert!(files.iter().all(|file| *file == files[0]));
        }
        assert!(learned[0].len() == 3 && learned[0].first() != learned[1].first());
    }))
    .await;
}

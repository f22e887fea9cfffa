//! What workers say to the coordinator, and what nobody should.

use std::time::Duration;

use ringtune_fuzzing::Path;
use ringtune_proto::v1::{
    self, JobState, LogLevel, RankPhase, SessionRequest, session_request::Message as Up,
};
use ringtune_recordings::{Happened, Recording};
use ringtune_shared::version::{VERSION, WORKER_PROTOCOLS};
use tonic::transport::Channel;

use crate::{
    MOST_BYTES, beside_a_ring,
    calls::{Answer, call, input, mend},
};

const SESSION: &str = "/ringtune.v1.WorkerService/Session";
/// A call that is over has an answer within this time, on a busy machine too.
const SOON: Duration = Duration::from_secs(15);

/// The sessions of a recording, one after the other.
fn recorded(name: &str) -> Vec<Vec<SessionRequest>> {
    let recording = Recording::read("0.2.0", name).unwrap();
    let mut sessions = Vec::new();
    for happened in recording.happened() {
        match (happened, sessions.last_mut()) {
            (Happened::Opened(_), _) => sessions.push(Vec::new()),
            (Happened::Up(said), Some(session)) => session.push(said.clone()),
            _ => {}
        }
    }
    sessions
}

/// What a stranger says who claims to hold a rank of a job, and reports of it.
fn claims(job_id: &str) -> Vec<SessionRequest> {
    let held = v1::HeldRank {
        job_id: job_id.to_owned(),
        epoch: 1,
        phase: RankPhase::Training.into(),
        step: 3,
        ..Default::default()
    };
    let hello = v1::Hello {
        worker_id: uuid::Uuid::now_v7().to_string(),
        incarnation: 7,
        host_name: "stranger".to_owned(),
        address: "127.0.0.1:9".to_owned(),
        protocol_min: WORKER_PROTOCOLS.min,
        protocol_max: WORKER_PROTOCOLS.max,
        features: vec!["re-form".to_owned(), "verify".to_owned()],
        capabilities: Some(v1::Capabilities {
            version: VERSION.to_owned(),
            cores: 2,
            threads: 2,
            numerics_class: "stranger".to_owned(),
            ..Default::default()
        }),
        held: vec![held.clone()],
        ..Default::default()
    };
    let report = v1::RankReport {
        job_id: job_id.to_owned(),
        epoch: 1,
        phase: RankPhase::Failed.into(),
        reason: "a stranger says so".to_owned(),
        trouble: Some(v1::RingTrouble { rank: 1, ..Default::default() }),
        ..Default::default()
    };
    let step = v1::StepReport { step: 50, loss: 0.5, learning_rate: 0.1, ..Default::default() };
    let line =
        v1::LogLine { level: LogLevel::Warn.into(), message: "hello".to_owned(), ..Default::default() };
    let job_id = job_id.to_owned();
    [
        Up::Hello(hello),
        Up::Heartbeat(v1::Heartbeat { held: vec![held] }),
        Up::RankReport(report),
        Up::RankStep(v1::RankStep { job_id: job_id.clone(), epoch: 1, step: Some(step) }),
        Up::RankTimings(v1::RankTimings {
            job_id: job_id.clone(),
            epoch: 1,
            step: 1,
            compute_seconds: 0.5,
            ..Default::default()
        }),
        Up::LinksSeen(v1::LinksSeen {
            job_id: job_id.clone(),
            look: 1,
            broken: vec![v1::BrokenLink { worker_id: job_id.clone(), reason: "no answer".to_owned() }],
            ..Default::default()
        }),
        Up::RankLog(v1::RankLog { job_id, epoch: 1, line: Some(line) }),
        Up::Metrics(v1::Metrics { number: 1, text: "ringtune_worker_step 1\n".to_owned() }),
        Up::Heartbeat(v1::Heartbeat::default()),
    ]
    .map(|message| SessionRequest { message: Some(message) })
    .to_vec()
}

/// The coordinator answers somebody else.
async fn answers(channel: &Channel, job_id: &str) {
    let mut jobs = v1::job_service_client::JobServiceClient::new(channel.clone());
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), ..Default::default() };
    let job = tokio::time::timeout(SOON, jobs.get_job(request)).await.unwrap().unwrap().into_inner();
    assert_ne!(job.job.unwrap().state(), JobState::Unspecified);
}

#[test]
fn session() {
    beside_a_ring(|runtime, bystander| {
        // Too many broken calls end their connection, which is not the one of somebody else.
        let [channel, other] = {
            let _runtime = runtime.enter();
            let door = bystander.cluster.coordinator.door();
            [door.channel().unwrap(), door.channel().unwrap()]
        };
        let job = bystander.job.clone();
        let recorded = ["pair", "reconnected", "failed"].into_iter().flat_map(recorded);
        let valid = recorded.chain([claims(&job)]).map(|session| input(&session)).collect();
        let handle = runtime.handle().clone();
        let mut calls = 0u64;
        Path {
            name: "session",
            words: vec![job.clone(), uuid::Uuid::nil().to_string(), "re-form".to_owned(), VERSION.to_owned()],
            valid,
            mend,
            most_bytes: MOST_BYTES,
            read: Box::new(move |body| {
                let answer = handle.block_on(call(&channel, SESSION, body, SOON));
                assert_ne!(answer, Answer::Waits, "the session has no end");
                calls += 1;
                if calls.is_multiple_of(64) {
                    handle.block_on(answers(&other, &job));
                }
                answer == Answer::Status(0)
            }),
        }
    });
}

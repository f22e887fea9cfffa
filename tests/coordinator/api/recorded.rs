//! Workers of release 0.2.0, played from recordings of their sessions: they say again what they said, about the job that
//! this coordinator gives them, and wait where they waited, for the same kind of word.
//!
//! `RINGTUNE_RECORD=1 make upgrade-test` records them.

use std::collections::BTreeMap;

use ringtune_proto::v1::{self, JobState, session_request::Message as Up, session_response::Message as Down};
use ringtune_recordings::{Happened, Recording, Release, pictures};
use ringtune_shared::{
    ids::ContentHash,
    manifest::{Manifest, ManifestFile},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{
    coordinator::Coordinator,
    soon,
    uploads::{chunk, header},
};

const RELEASE: &str = "0.2.0";

/// A recorded worker.
struct Player<'a> {
    coordinator: &'a Coordinator,
    recording: Recording,
    release: Release,
    /// The job as it was recorded, and the one that is played.
    jobs: (String, String),
    /// The epochs as they were recorded, and as they are now.
    epochs: BTreeMap<u64, u64>,
    session: Option<Session>,
    /// The last step that is stored.
    stored: i64,
}

struct Session {
    up: mpsc::Sender<v1::SessionRequest>,
    down: Streaming<v1::SessionResponse>,
}

impl<'a> Player<'a> {
    fn new(coordinator: &'a Coordinator, recording: Recording, job: &v1::Job) -> Self {
        let recorded = recording.assignment().unwrap().ring.clone().unwrap().job_id;
        Self {
            coordinator,
            recording,
            release: Release::read(RELEASE).unwrap(),
            jobs: (recorded, job.job_id.clone()),
            epochs: BTreeMap::new(),
            session: None,
            stored: 0,
        }
    }

    /// Says and awaits everything.
    async fn play(mut self) -> Self {
        let recording = self.recording.clone();
        for happened in recording.happened() {
            match happened {
                Happened::Opened(_) => assert!(self.session.is_none(), "the last session did not end"),
                Happened::Broke(_) => self.session = None,
                Happened::Up(request) => self.say(request.clone()).await,
                Happened::Down(response) => self.wait_for(response.message.as_ref().unwrap()).await,
                Happened::Uploaded(uploaded) => self.upload(uploaded).await,
                Happened::Cancelled(_) => drop(self.coordinator.cancel(&self.jobs.1).await.unwrap()),
            }
        }
        self
    }

    async fn say(&mut self, mut request: v1::SessionRequest) {
        match request.message.as_mut().unwrap() {
            Up::Hello(hello) => {
                // Ranks go by the names of the hosts.
                hello.host_name = format!("rank-{}", self.recording.assignment().unwrap().rank);
                hello.held.iter_mut().for_each(|held| self.translate_held(held));
            }
            Up::Heartbeat(beat) => beat.held.iter_mut().for_each(|held| self.translate_held(held)),
            Up::RankReport(report) => self.translate(&mut report.job_id, &mut report.epoch),
            Up::RankStep(step) => self.translate(&mut step.job_id, &mut step.epoch),
            Up::RankLog(log) => self.translate(&mut log.job_id, &mut log.epoch),
            Up::RankTimings(timings) => self.translate(&mut timings.job_id, &mut timings.epoch),
            Up::LinksSeen(_) | Up::Metrics(_) => panic!("no release that was recorded knows it"),
        }
        if let Some(session) = &self.session {
            return session.up.send(request).await.unwrap();
        }
        // The first word of a session.
        let (up, words) = mpsc::channel(64);
        up.send(request).await.unwrap();
        let mut workers = self.coordinator.workers();
        let call = workers.session(ReceiverStream::new(words));
        let down = soon("a session", call).await.unwrap().into_inner();
        self.session = Some(Session { up, down });
    }

    fn translate_held(&self, held: &mut v1::HeldRank) {
        self.translate(&mut held.job_id, &mut held.epoch);
    }

    fn translate(&self, job_id: &mut String, epoch: &mut u64) {
        assert_eq!(*job_id, self.jobs.0, "the recording is about another job");
        job_id.clone_from(&self.jobs.1);
        *epoch = *self.epochs.get(epoch).expect("an epoch before its assignment");
    }

    /// The coordinator's next word, which 0.2.0 must be able to read.
    async fn hear(&mut self, recorded: &Down) -> Down {
        let down = &mut self.session.as_mut().expect("no session").down;
        let heard = soon(&format!("a word like {recorded:?}"), down.message()).await.unwrap();
        let heard = heard.expect("the session ended");
        self.release.expect_known("SessionResponse", &heard, &[]).unwrap();
        let heard = heard.message.expect("an empty word");
        if let Down::StepsStored(stored) = &heard {
            assert_eq!(stored.job_id, self.jobs.1);
            self.stored = self.stored.max(stored.step);
        }
        heard
    }

    /// Waits until the coordinator has said what the recorded one said. How many steps it stores at once is its own affair.
    async fn wait_for(&mut self, recorded: &Down) {
        if let Down::StepsStored(stored) = recorded {
            while self.stored < stored.step {
                let heard = self.hear(recorded).await;
                assert!(matches!(heard, Down::StepsStored(_)), "{heard:?} instead of {recorded:?}");
            }
            return;
        }
        let heard = loop {
            match self.hear(recorded).await {
                Down::StepsStored(_) => {}
                heard => break heard,
            }
        };
        match (recorded, &heard) {
            (Down::Welcome(recorded), Down::Welcome(heard)) => {
                assert_eq!((heard.protocol, &heard.features), (recorded.protocol, &recorded.features));
            }
            (Down::Assignment(recorded), Down::Assignment(heard)) => self.take(recorded, heard),
            (Down::StartRank(recorded), Down::StartRank(heard)) => {
                self.expect_rank(&recorded.job_id, recorded.epoch, (&heard.job_id, heard.epoch));
            }
            (Down::StopRank(recorded), Down::StopRank(heard)) => {
                self.expect_rank(&recorded.job_id, recorded.epoch, (&heard.job_id, heard.epoch));
                assert_eq!(heard.keep_artifacts, recorded.keep_artifacts);
            }
            _ => panic!("{heard:?} instead of {recorded:?}"),
        }
    }

    fn expect_rank(&self, recorded_job: &str, recorded_epoch: u64, heard: (&str, u64)) {
        let (mut job_id, mut epoch) = (recorded_job.to_owned(), recorded_epoch);
        self.translate(&mut job_id, &mut epoch);
        assert_eq!(heard, (job_id.as_str(), epoch));
    }

    /// A rank is as it was, but for the job's name, the epoch and the version that is written into files.
    fn take(&mut self, recorded: &v1::Assignment, heard: &v1::Assignment) {
        let (then, now) = (recorded.ring.clone().unwrap(), heard.ring.clone().unwrap());
        self.epochs.insert(then.epoch, now.epoch);
        let ring = v1::RingView { job_id: then.job_id.clone(), epoch: then.epoch, ..now };
        let members = |ring: &v1::RingView| -> Vec<String> {
            ring.members.iter().map(|member| member.worker_id.clone()).collect()
        };
        assert_eq!(members(&ring), members(&then));
        let ring = v1::RingView { members: then.members.clone(), ..ring };
        let comparable =
            v1::Assignment { ring: Some(ring), version: recorded.version.clone(), ..heard.clone() };
        assert_eq!(comparable, *recorded);
    }

    /// A file of that name; nobody looks into it.
    async fn upload(&self, recorded: &v1::UploadHeader) {
        let content = recorded.name.as_bytes();
        let (mut job_id, mut epoch) = (recorded.job_id.clone(), recorded.epoch.expect("an epoch"));
        self.translate(&mut job_id, &mut epoch);
        let v1::UploadHeader { name, media_type, .. } = recorded.clone();
        let header = v1::UploadHeader { job_id, name, media_type, epoch: Some(epoch), ..header(content) };
        let answer = self.coordinator.upload(header, vec![chunk(content)]).await.unwrap();
        assert!(answer.complete, "{answer:?}");
    }
}

/// Makes the recorded job of this coordinator, with its pictures.
async fn create(coordinator: &Coordinator, recording: &Recording) -> v1::Job {
    let spec = recording.assignment().unwrap().spec.clone().unwrap();
    let mut files = Vec::new();
    for (name, content) in pictures().unwrap() {
        let (sha256, size) = (ContentHash::of(&content), content.len() as u64);
        files.push(ManifestFile::new(name, sha256, size, Vec::new()));
        coordinator.upload(header(&content), vec![chunk(&content)]).await.unwrap();
    }
    let manifest = Manifest::new(files).unwrap().to_json().unwrap();
    assert_eq!(ContentHash::of(&manifest).uri(), spec.data.as_ref().unwrap().images);
    coordinator.upload(header(&manifest), vec![chunk(&manifest)]).await.unwrap();
    let request =
        v1::CreateJobRequest { spec: Some(spec), request_id: "replayed".to_owned(), ..Default::default() };
    coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap()
}

/// Plays the recorded workers of one job to their ends, and expects the job's.
async fn replay(names: &[&str], state: JobState) -> v1::Job {
    let coordinator = Coordinator::fresh().await;
    let recordings: Vec<_> = names.iter().map(|name| Recording::read(RELEASE, name).unwrap()).collect();
    let job = create(&coordinator, &recordings[0]).await;
    let players =
        recordings.iter().map(|recording| Player::new(&coordinator, recording.clone(), &job).play());
    let played = futures::future::join_all(players).await;
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!(ended.state(), state, "{}", ended.state_reason);

    // 1. Every step is there once, and the last one that was said is the job's.
    let said = |recording: &Recording| {
        recording
            .said()
            .filter_map(|said| match said {
                Up::RankStep(step) => step.step.as_ref().map(|step| step.step),
                _ => None,
            })
            .max()
    };
    let last = recordings.iter().filter_map(said).max().unwrap_or_default();
    let request = v1::ListStepsRequest { job_id: job.job_id.clone(), page_size: 1000, ..Default::default() };
    let steps = coordinator.jobs().list_steps(request).await.unwrap().into_inner().steps;
    let steps: Vec<i64> = steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    assert_eq!(ended.step, last);

    // 2. So is every file.
    let request = v1::ListArtifactsRequest { job_id: job.job_id.clone(), ..Default::default() };
    let listed = coordinator.artifacts().list_artifacts(request).await.unwrap().into_inner().artifacts;
    let listed: Vec<String> = listed.into_iter().map(|artifact| artifact.name).collect();
    let mut uploaded: Vec<String> = recordings.iter().flat_map(uploads).collect();
    uploaded.sort();
    uploaded.dedup();
    assert_eq!(listed, uploaded);

    // 3. Nothing that was said was skipped, and the workers are free for another job.
    let metrics = coordinator.http_get("/metrics").await;
    let skipped = ["ringtune_unknown_messages_total{", "ringtune_other_epoch_total{"];
    for line in metrics.lines().filter(|line| skipped.iter().any(|name| line.starts_with(name))) {
        assert!(line.ends_with(" 0"), "{line}");
    }
    let free = async || {
        let request = v1::ListWorkersRequest::default();
        let workers = coordinator.cluster().list_workers(request).await.unwrap().into_inner().workers;
        workers.len() == names.len() && workers.iter().all(|worker| worker.state() == v1::WorkerState::Idle)
    };
    let all_free = async {
        while !free().await {
            tokio::task::yield_now().await;
        }
    };
    soon("the workers to be free", all_free).await;
    drop(played);
    coordinator.stop().await;
    ended
}

fn uploads(recording: &Recording) -> Vec<String> {
    let uploads = recording.happened().filter_map(|happened| match happened {
        Happened::Uploaded(header) => Some(header.name.clone()),
        _ => None,
    });
    uploads.collect()
}

#[tokio::test]
async fn a_whole_job_of_a_worker_of_0_2_0() {
    Box::pin(replay(&["succeeded"], JobState::Succeeded)).await;
}

#[tokio::test]
async fn a_ring_of_two_workers_of_0_2_0() {
    Box::pin(replay(&["pair", "pair-1"], JobState::Succeeded)).await;
}

#[tokio::test]
async fn a_worker_of_0_2_0_that_comes_back_in_the_middle_of_its_job() {
    Box::pin(replay(&["reconnected"], JobState::Succeeded)).await;
}

#[tokio::test]
async fn a_cancelled_job_of_a_worker_of_0_2_0() {
    Box::pin(replay(&["cancelled"], JobState::Cancelled)).await;
}

#[tokio::test]
async fn a_job_that_fails_on_a_worker_of_0_2_0() {
    let ended = Box::pin(replay(&["failed"], JobState::Failed)).await;
    assert!(ended.state_reason.contains("\"not one token\" is 3 tokens"), "{}", ended.state_reason);
}

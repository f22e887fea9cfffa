//! A coordinator of release 0.2.0, played from recordings of its sessions: it says again what it said, once this worker has
//! said what the recorded one had.
//!
//! `RINGTUNE_RECORD=1 make upgrade-test` records them.

use std::{collections::HashSet, time::Duration};

use ringtune_fake_engine::FakeScript;
use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1::{self, RankPhase, session_request::Message as Up, session_response::Message as Down},
};
use ringtune_recordings::{Happened, Recording, Release, pictures};
use ringtune_shared::job::JobSpec;

use crate::{
    coordinator::{Coordinator, Language, Session},
    worker::{Worker, fixture},
};

const RELEASE: &str = "0.2.0";
/// What 0.2.0 does not know and does not miss: the hash of the state after a step, and what travelled in it.
const MAY_SKIP: [&str; 5] = [
    "field 14 of SessionRequest.rank_step.step",
    "field 15 of SessionRequest.rank_step.step",
    // Whose fault it is, beside the sort of fault that it knows.
    "field 12 of SessionRequest.rank_report",
    "field 11 of SessionRequest.hello.held",
    "field 11 of SessionRequest.heartbeat.held",
];

/// What a worker says that a coordinator goes by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Milestone {
    Phase(RankPhase),
    Step(i64),
    /// It held a rank, and holds none any more.
    Free,
}

fn milestone(said: &Up, has_held: bool) -> Option<Milestone> {
    match said {
        Up::RankReport(report) => Some(Milestone::Phase(report.phase())),
        Up::RankStep(step) => step.step.as_ref().map(|step| Milestone::Step(step.step)),
        Up::Heartbeat(beat) if beat.held.is_empty() && has_held => Some(Milestone::Free),
        Up::Hello(_) | Up::Heartbeat(_) | Up::RankLog(_) => None,
        Up::RankTimings(_) | Up::LinksSeen(_) | Up::Metrics(_) => panic!("{RELEASE} does not know it"),
    }
}

/// A recorded coordinator, and this worker.
struct Player {
    coordinator: Coordinator,
    recording: Recording,
    release: Release,
    worker: Worker,
    session: Option<Session>,
    seen: HashSet<Milestone>,
    /// Whatever the worker said.
    said: Vec<Up>,
}

impl Player {
    async fn start(name: &str) -> Self {
        let recording = Recording::read(RELEASE, name).unwrap();
        let mut welcomes = recording.heard().filter_map(|heard| match heard {
            Down::Welcome(welcome) => Some(welcome.clone()),
            _ => None,
        });
        let welcome = welcomes.next().expect("a welcome");
        drop(welcomes);
        assert_eq!((welcome.coordinator_version.as_str(), welcome.features.len()), (RELEASE, 0));
        let (version, protocol) = (RELEASE.to_owned(), welcome.protocol);
        let language = Language { version, protocol, ..Language::default() };
        let coordinator = Coordinator::speaking(language).await;
        let script = FakeScript { gradient_takes: Duration::from_millis(5), ..FakeScript::default() };
        let worker = Worker::start(&coordinator, script);
        let release = Release::read(RELEASE).unwrap();
        Self {
            coordinator,
            recording,
            release,
            worker,
            session: None,
            seen: HashSet::new(),
            said: Vec::new(),
        }
    }

    /// Says and awaits everything.
    async fn play(&mut self) {
        Box::pin(self.play_until(|_| false)).await;
    }

    /// Says and awaits everything up to that.
    async fn play_until(&mut self, end: impl Fn(&Happened) -> bool) {
        let recording = self.recording.clone();
        let (mut holds, mut stopped) = (false, false);
        for happened in recording.happened().take_while(|happened| !end(happened)) {
            match happened {
                Happened::Opened(_) => {
                    let session = self.coordinator.accept().await;
                    let hello = v1::SessionRequest { message: Some(Up::Hello(session.hello.clone())) };
                    self.release.expect_known("SessionRequest", &hello, &MAY_SKIP).unwrap();
                    self.session = Some(session);
                }
                Happened::Broke(_) => self.session = None,
                Happened::Up(request) => {
                    let awaited = milestone(request.message.as_ref().unwrap(), holds);
                    // How many steps it takes before it hears that it is to stop is its own affair.
                    match awaited {
                        Some(Milestone::Step(_)) if stopped => {}
                        Some(awaited) => self.wait_for(&awaited).await,
                        None => {}
                    }
                }
                Happened::Down(response) => {
                    let message = response.message.clone().unwrap();
                    holds |= matches!(message, Down::Assignment(_));
                    stopped |= matches!(message, Down::StopRank(_));
                    self.say(message).await;
                }
                Happened::Uploaded(_) | Happened::Cancelled(_) => {}
            }
        }
    }

    /// Reads on until the worker has said it, if it has not yet; 0.2.0 must be able to read all that it says.
    async fn wait_for(&mut self, awaited: &Milestone) {
        while !self.seen.contains(awaited) {
            let said = self.session.as_mut().expect("a session").next().await;
            let said =
                said.unwrap_or_else(|| panic!("the session ended before {awaited:?}: {:?}", self.said));
            let request = v1::SessionRequest { message: Some(said.clone()) };
            self.release.expect_known("SessionRequest", &request, &MAY_SKIP).unwrap();
            if let Some(milestone) = milestone(&said, !self.seen.is_empty()) {
                let failed = milestone == Milestone::Phase(RankPhase::Failed) && milestone != *awaited;
                assert!(!failed, "{said:?} instead of {awaited:?}");
                self.seen.insert(milestone);
            }
            self.said.push(said);
        }
    }

    async fn say(&self, mut message: Down) {
        let session = self.session.as_ref().expect("a session");
        match &mut message {
            // It was said when the session was accepted.
            Down::Welcome(_) => return,
            Down::Assignment(assignment) => self.make_fit(assignment, session),
            _ => {}
        }
        session.say(message).await;
    }

    /// The same rank for this worker, on a model that is a folder of this machine.
    fn make_fit(&self, assignment: &mut v1::Assignment, session: &Session) {
        let ring = assignment.ring.as_mut().unwrap();
        assert_eq!(ring.members.len(), 1);
        ring.members = vec![session.member()];
        let spec: JobSpec = spec_from_wire(assignment.spec.clone().unwrap()).unwrap();
        assert_eq!(
            spec.hash().unwrap().to_string(),
            assignment.spec_sha256,
            "the spec is read as another one"
        );
        let pictures = pictures().unwrap();
        let borrowed: Vec<(&str, Vec<u8>)> =
            pictures.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let images = self.coordinator.add_images(&borrowed);
        let mut wire = spec_to_wire(&spec);
        assert_eq!(wire.data.as_ref().unwrap().images, images);
        wire.model.as_mut().unwrap().base = fixture("toy-sd").display().to_string();
        assignment.spec_sha256 = spec_from_wire(wire.clone()).unwrap().hash().unwrap().to_string();
        assignment.spec = Some(wire);
    }

    /// The phases that were reported, each once, in order.
    fn phases(&self) -> Vec<RankPhase> {
        let mut phases: Vec<RankPhase> = Vec::new();
        for said in &self.said {
            if let Up::RankReport(report) = said
                && phases.last() != Some(&report.phase())
            {
                phases.push(report.phase());
            }
        }
        phases
    }

    /// The steps that were reported, each once.
    fn steps(&self) -> Vec<i64> {
        let mut steps: Vec<i64> = self
            .said
            .iter()
            .filter_map(|said| match said {
                Up::RankStep(step) => step.step.as_ref().map(|step| step.step),
                _ => None,
            })
            .collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// The names of the files that it uploaded.
    fn files(&self) -> Vec<String> {
        let job = self.recording.assignment().unwrap().ring.clone().unwrap().job_id;
        self.coordinator.kept_names(job.parse().unwrap())
    }
}

async fn played(name: &str) -> Player {
    let mut player = Box::pin(Player::start(name)).await;
    Box::pin(player.play()).await;
    player
}

/// The names of the files that the recorded worker uploaded.
fn recorded_files(recording: &Recording) -> Vec<String> {
    let names = recording.happened().filter_map(|happened| match happened {
        Happened::Uploaded(header) => Some(header.name.clone()),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_job_of_a_coordinator_of_0_2_0() {
    let player = Box::pin(played("succeeded")).await;
    use RankPhase::{Finished, Preparing, Ready, Training};
    assert_eq!(player.phases(), [Preparing, Ready, Training, Finished]);
    assert_eq!(player.steps(), [1, 2, 3, 4]);
    assert_eq!(player.files(), recorded_files(&player.recording));
    assert!(!player.worker.running.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_of_0_2_0_is_away_for_a_while() {
    let player = Box::pin(played("reconnected")).await;
    assert_eq!(player.phases().last(), Some(&RankPhase::Finished));
    assert_eq!(player.steps(), (1..=20).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_of_0_2_0_cancels_a_job() {
    let player = Box::pin(played("cancelled")).await;
    assert_eq!(player.phases().last(), Some(&RankPhase::Stopped));
    assert!(player.files().contains(&"learned_embeds.safetensors".to_owned()), "{:?}", player.files());
}

/// 0.2.0 knows no ranks that leave their rings: the worker stops, keeps what it has, and says no more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_ends_while_its_coordinator_is_of_0_2_0() {
    let mut player = Box::pin(Player::start("cancelled")).await;
    Box::pin(player.play_until(|happened| matches!(happened, Happened::Cancelled(_)))).await;
    player.worker.shutdown.soft.cancel();
    while let Some(said) = player.session.as_mut().unwrap().next().await {
        let request = v1::SessionRequest { message: Some(said) };
        player.release.expect_known("SessionRequest", &request, &MAY_SKIP).unwrap();
    }
    (&mut player.worker.running).await.unwrap().unwrap();
    assert!(player.files().contains(&"learned_embeds.safetensors".to_owned()), "{:?}", player.files());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_coordinator_of_0_2_0_fails() {
    let player = Box::pin(played("failed")).await;
    let reports = player.said.iter().filter_map(|said| match said {
        Up::RankReport(report) if report.phase() == RankPhase::Failed => Some(report),
        _ => None,
    });
    let failed: Vec<_> = reports.collect();
    assert_eq!(failed[0].fault(), v1::RankFault::Job, "{failed:?}");
    assert!(failed[0].reason.contains("\"not one token\" is 3 tokens"), "{failed:?}");
}

//! Ranks that train one language model: whoever is lost or comes, the bytes are those of a run alone.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ringtune_fake_engine::{FakeMachine, FakeScript, HeldCalls};
use ringtune_proto::v1::{self, RankFault, RankPhase};
use ringtune_shared::{ids::JobId, job::JobSpec};
use tokio::time::sleep;

use crate::{
    coordinator::{Coordinator, Language, Rank},
    language_models::{Ground, run_alone, until_failed},
    re_forming::{enter, until_step_of, view},
    rings::{Ring, begin, begin_as, ring, ring_at, ring_with},
    worker::until,
};

/// Microbatches of a step, which one or two ranks share.
pub const MICROBATCHES: u32 = 4;

/// The files that depend on the job alone.
pub fn results(coordinator: &Coordinator, id: JobId, checkpoint: u64) -> Vec<Vec<u8>> {
    let checkpoint = format!("checkpoint-{checkpoint}.safetensors");
    let names = ["model.safetensors", "config.json", &checkpoint];
    names.map(|name| coordinator.kept(id, name).unwrap_or_else(|| panic!("{name} is missing"))).into()
}

/// Of steps what does not depend on the ring.
type Bits = Vec<(i64, u64, Option<u64>, String)>;

fn bits(steps: &[v1::StepReport]) -> Bits {
    let bits = |step: &v1::StepReport| {
        (step.step, step.loss.to_bits(), step.validation_loss.map(f64::to_bits), step.state_sha256.clone())
    };
    steps.iter().map(bits).collect()
}

/// What a job comes to on one worker that has all.
pub struct Expected {
    checkpoint: u64,
    pub files: Vec<Vec<u8>>,
    pub steps: Bits,
    table: Vec<[String; 4]>,
    /// Ranks that share the state out give other hashes of it: of what each of them has.
    hashed: bool,
}

impl Expected {
    pub async fn of(spec: &JobSpec, checkpoint: u64) -> Self {
        let (alone, id, steps) = run_alone(FakeScript::default(), spec).await;
        let (files, table) = (results(&alone.coordinator, id, checkpoint), measured(&alone.coordinator, id));
        Self { checkpoint, files, steps: bits(&steps), table, hashed: true }
    }

    /// The same without hashes of states.
    pub async fn but_for_hashes(spec: &JobSpec, checkpoint: u64) -> Self {
        let mut expected = Self::of(spec, checkpoint).await;
        expected.steps.iter_mut().for_each(|step| step.3.clear());
        Self { hashed: false, ..expected }
    }

    /// A ring came to the same.
    pub fn check(&self, coordinator: &Coordinator, id: JobId, about: &str) {
        let mut told = bits(&coordinator.steps.of_job(id));
        if !self.hashed {
            told.iter_mut().for_each(|step| step.3.clear());
        }
        assert_eq!(told, self.steps, "{about}");
        assert!(results(coordinator, id, self.checkpoint) == self.files, "{about}: other bytes");
    }
}

/// Workers of a coordinator that gives running jobs other rings.
pub async fn ring_of(scripts: Vec<FakeScript>) -> Ring {
    let language = Language { re_forms: true, ..Language::default() };
    ring_at(Coordinator::speaking(language).await, scripts).await
}

/// The same, of workers that have no local sockets.
pub async fn ring_through_ports(scripts: Vec<FakeScript>) -> Ring {
    ring_through_connections(0, scripts).await
}

/// The same, with so many connections to a neighbour.
async fn ring_through_connections(connections: usize, scripts: Vec<FakeScript>) -> Ring {
    let language = Language { re_forms: true, ..Language::default() };
    ring_with(Coordinator::speaking(language).await, scripts, |settings| {
        (settings.ring.local_sockets, settings.ring.connections) = (false, connections);
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_three_ranks_train_the_same_language_model() {
    let ground = Ground::lay();
    let options = "max_iters = 9\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 4\neval_iters = 5\n\
                   checkpointing_steps = 3\ncompare_interval = 2\ndropout = 0.25\n";
    let spec = ground.job(options, MICROBATCHES);
    let expected = Expected::of(&spec, 6).await;
    for workers in [2, 3] {
        let mut ring = ring(vec![FakeScript::default(); workers]).await;
        let id = begin(&mut ring, &spec).await;
        let (_, steps) = ring.sessions[0].until(RankPhase::Finished).await;
        assert!(steps.iter().all(|step| step.world_size as usize == workers));
        assert_eq!(bits(&steps), expected.steps, "{workers} ranks");
        expected.check(&ring.coordinator, id, &format!("{workers} ranks"));
    }
}

/// Sums in the ring's own order: two ranks with three microbatches each come to the same bytes each time, to other ones than a
/// rank alone, and to the same losses but for rounding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_sums_are_the_same_bits_for_the_same_number_of_ranks() {
    let ground = Ground::lay();
    let options = "max_iters = 9\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 4\neval_iters = 5\n\
                   checkpointing_steps = 3\ncompare_interval = 1\ngradient_accumulation_steps = 3\n";
    let exact = ground.job(options, 2);
    let fast = ground.job(&format!("{options}exchange = \"fast\"\n"), 2);
    let in_bf16 = ground.job(&format!("{options}exchange = \"fast_bf16\"\n"), 2);
    let two = async |spec: &JobSpec| {
        let mut ring = ring(vec![FakeScript::default(); 2]).await;
        let id = begin(&mut ring, spec).await;
        let (_, steps) = ring.sessions[0].until(RankPhase::Finished).await;
        let log = String::from_utf8(ring.coordinator.kept(id, "job.log").unwrap()).unwrap();
        assert!(!log.contains("NOT BIT-EXACT"), "{log}");
        let sent: i64 = steps.iter().filter_map(|step| Some(step.traffic.as_ref()?.sent_bytes)).sum();
        (results(&ring.coordinator, id, 6), bits(&steps), sent)
    };
    let (first, again, exactly) = (two(&fast).await, two(&fast).await, two(&exact).await);
    assert!(first == again, "not the same bits for the same number of ranks");
    let (rounded, again) = (two(&in_bf16).await, two(&in_bf16).await);
    assert!(rounded == again, "not the same bits for the same number of ranks");
    assert!(first.2 > 0 && rounded.2 < first.2 * 6 / 10, "{} bytes in bf16, {} in fp32", rounded.2, first.2);
    let (alone, id, steps) = run_alone(FakeScript::default(), &fast).await;
    let states = |steps: &Bits| -> Vec<String> { steps.iter().map(|step| step.3.clone()).collect() };
    assert_ne!(states(&first.1), states(&exactly.1), "fast is exact");
    assert_ne!(states(&first.1), states(&rounded.1), "nothing is rounded");
    assert_ne!(states(&first.1), states(&bits(&steps)), "one rank adds up as two do");
    for (steps, far) in [(&first.1, 1e-5), (&rounded.1, 1e-2)] {
        for (one, other) in steps.iter().zip(&exactly.1) {
            let [one, other] = [one.1, other.1].map(f64::from_bits);
            assert!((one - other).abs() < far * other.abs(), "{one} and {other}");
        }
    }
    // The model says so, and so does the log of a ring that is not the job's.
    let facts = |file: &[u8]| {
        let (_, header) = safetensors::SafeTensors::read_metadata(file).unwrap();
        header.metadata().as_ref().unwrap()["ringtune"].clone()
    };
    assert!(facts(&first.0[0]).contains("fast: the bits also follow from the number of ranks"));
    assert!(facts(&rounded.0[0]).contains("fast_bf16: the bits also follow"));
    assert!(!facts(&exactly.0[0]).contains("fast"));
    let log = String::from_utf8(alone.coordinator.kept(id, "job.log").unwrap()).unwrap();
    assert!(
        log.contains("NOT BIT-EXACT: gpt2.exchange is \"fast\", and this ring has 1 rank(s), not 2"),
        "{log}"
    );
}

/// A job whose loss is taken after steps 4, 8 and 9, one microbatch of it by each of two ranks.
const JUDGED: &str = "max_iters = 9\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 4\neval_iters = 2\n\
                      checkpointing_steps = 3\ncompare_interval = 2\n";

/// A worker that takes a loss for so long that it is lost in the middle of its first one.
fn slow_to_judge() -> FakeScript {
    let machine = FakeMachine { loss_takes: Duration::from_secs(3), ..FakeMachine::default() };
    FakeScript { machine, ..FakeScript::default() }
}

/// What metrics.csv has that no clock decides: step, loss, rate and validation loss.
fn measured(coordinator: &Coordinator, id: JobId) -> Vec<[String; 4]> {
    let table = String::from_utf8(coordinator.kept(id, "metrics.csv").unwrap()).unwrap();
    let line = |line: &str| {
        let columns: Vec<&str> = line.split(',').collect();
        [0, 1, 2, 7].map(|column| columns[column].to_owned())
    };
    table.lines().map(line).collect()
}

/// What a validation says of a step is in no state yet when the ring breaks, and the step is settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_is_lost_while_the_loss_of_a_language_model_is_taken() {
    let ground = Ground::lay();
    let spec = ground.job(JUDGED, MICROBATCHES);
    let expected = Expected::of(&spec, 6).await;
    // 1. Rank 1 is lost in the middle of its only loss after step 4, which rank 0 waits for.
    let slow = slow_to_judge();
    let losses = Arc::clone(&slow.losses);
    let mut ring = ring_of(vec![FakeScript::default(), slow]).await;
    let id = begin(&mut ring, &spec).await;
    until(|| losses.load(Ordering::Relaxed) > 0).await;
    ring.workers[1].shutdown.hard.cancel();
    let (waiting, mut told) = ring.sessions[0].until(RankPhase::Waiting).await;
    assert_eq!((waiting.step, waiting.trouble.unwrap().rank), (4, 1));
    assert_eq!(told.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3], "4 is not found out yet");
    // 2. Rank 0 goes on alone, and takes the whole loss itself.
    enter(&ring.sessions[0], view(id, 2, &[ring.members[0].clone()]), 0, false).await;
    let (entered, steps) = ring.sessions[0].until(RankPhase::Training).await;
    assert_eq!((entered.epoch, entered.step), (2, 4));
    told.extend(steps);
    told.extend(ring.sessions[0].until(RankPhase::Finished).await.1);
    // 3. Each step was told once, with the bits of a run alone.
    assert_eq!(bits(&told), expected.steps);
    assert_eq!(told.iter().map(|step| step.world_size).collect::<Vec<_>>(), [2, 2, 2, 2, 1, 1, 1, 1, 1]);
    expected.check(&ring.coordinator, id, "without rank 1");
}

/// Ranks that are joined by several connections each lose one of them, and are joined so again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_several_connections_join_go_on_without_one_that_is_lost() {
    let ground = Ground::lay();
    let spec = ground.job(JUDGED, MICROBATCHES);
    let expected = Expected::of(&spec, 6).await;
    // 1. The second one is lost in its first loss.
    let slow = slow_to_judge();
    let losses = Arc::clone(&slow.losses);
    let scripts = vec![FakeScript::default(), slow, FakeScript::default()];
    let mut ring = ring_through_connections(3, scripts).await;
    let id = begin(&mut ring, &spec).await;
    until(|| losses.load(Ordering::Relaxed) > 0).await;
    ring.workers[1].shutdown.hard.cancel();
    ring.sessions.remove(1);
    ring.members.remove(1);
    for session in &mut ring.sessions {
        session.until(RankPhase::Waiting).await;
    }
    // 2. The others go on.
    for (rank, session) in (0..2).zip(&ring.sessions) {
        enter(session, view(id, 2, &ring.members), rank, false).await;
    }
    ring.sessions[0].until(RankPhase::Finished).await;
    expected.check(&ring.coordinator, id, "another ring");
    let log = String::from_utf8(ring.coordinator.kept(id, "job.log").unwrap()).unwrap();
    let joined = log.matches("rank 1 is reached through 3 connections").count();
    assert_eq!(joined, 2, "{log}");
}

/// Nobody has told the step whose loss was being taken, and the newcomer that is to tell it was not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_tells_the_step_of_a_language_model_that_rank_0_was_lost_in() {
    let ground = Ground::lay();
    let spec = ground.job(JUDGED, MICROBATCHES);
    let expected = Expected::of(&spec, 6).await;
    // 1. Of three workers two have the job; the third one is prepared to join them.
    let slow = slow_to_judge();
    let losses = Arc::clone(&slow.losses);
    let mut ring = ring_of(vec![slow, FakeScript::default(), FakeScript::default()]).await;
    let (mut newcomer, third) = (ring.sessions.pop().unwrap(), ring.members.pop().unwrap());
    let id = JobId::new();
    newcomer.join(Rank { job: id, epoch: 1, members: &ring.members, rank: 0, spec: &spec }).await;
    newcomer.until(RankPhase::Ready).await;
    begin_as(&mut ring, id, &spec).await;
    // 2. Rank 0 is lost while it takes its loss after step 4.
    until(|| losses.load(Ordering::Relaxed) > 0).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 3 {}
    ring.workers[0].shutdown.hard.cancel();
    let (waiting, told) = ring.sessions[1].until(RankPhase::Waiting).await;
    assert_eq!((waiting.step, waiting.trouble.unwrap().rank, told.len()), (4, 0, 0));
    // 3. The newcomer takes its place, with the state of rank 1.
    let members = [third, ring.members[1].clone()];
    enter(&ring.sessions[1], view(id, 2, &members), 1, false).await;
    enter(&newcomer, view(id, 2, &members), 0, false).await;
    let (_, told) = newcomer.until(RankPhase::Finished).await;
    let fourth: Vec<_> = bits(&told).into_iter().filter(|step| step.0 == 4).collect();
    assert_eq!(fourth, [expected.steps[3].clone()], "step 4 is told once");
    ring.sessions[1].until(RankPhase::Done).await;
    expected.check(&ring.coordinator, id, "another ring");
    assert_eq!(measured(&ring.coordinator, id), expected.table);
}

/// One worker has the job; another one, which is prepared before, enters after a step from `from` on. `is_first`: as rank 0.
pub async fn newcomer(spec: &JobSpec, from: i64, is_first: bool) {
    let expected = Expected::of(spec, 30).await;
    // 1. Slow enough for the other one to come before the last step.
    let slow = FakeScript { gradient_takes: Duration::from_millis(10), ..FakeScript::default() };
    let mut ring = ring_of(vec![slow; 2]).await;
    let (id, alone) = (JobId::new(), [ring.members[0].clone()]);
    ring.sessions[0].assign(Rank { job: id, epoch: 1, members: &alone, rank: 0, spec }).await;
    ring.sessions[1].join(Rank { job: id, epoch: 1, members: &alone, rank: 0, spec }).await;
    ring.sessions[1].until(RankPhase::Ready).await;
    ring.sessions[0].start_when_ready(id).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < from {}
    // 2. Both change into the ring of two after the same step.
    let mut members = ring.members.clone();
    let (mut ranks, mut first) = ([0, 1], 0);
    if is_first {
        members.reverse();
        (ranks, first) = ([1, 0], 1);
    }
    for (session, rank) in ring.sessions.iter().zip(ranks) {
        enter(session, view(id, 2, &members), rank, true).await;
    }
    let (_, told) = ring.sessions[first].until(RankPhase::Finished).await;
    let together: Vec<i32> = told.iter().filter(|step| step.epoch == 2).map(|step| step.world_size).collect();
    assert!(!together.is_empty() && together.iter().all(|ranks| *ranks == 2), "{together:?}");
    // 3. The same steps, the same bytes.
    expected.check(&ring.coordinator, id, "with a newcomer");
    if is_first {
        let log = String::from_utf8(ring.coordinator.kept(id, "job.log").unwrap()).unwrap();
        assert!(log.contains("took the state after step"), "{log}");
    }
}

/// Without a validation there are no best parameters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_the_state_of_a_language_model() {
    let options = "max_iters = 40\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 0\ncheckpointing_steps = 30\n\
                   compare_interval = 3\n";
    let ground = Ground::lay();
    let spec = ground.job(options, MICROBATCHES);
    Box::pin(newcomer(&spec, 3, false)).await;
}

/// Each step is validated, so that the one after which it comes is, too: that loss belongs to no state yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_the_best_parameters_of_a_language_model_too() {
    let options = "max_iters = 40\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 1\neval_iters = 2\n\
                   checkpointing_steps = 30\ncompare_interval = 1\n";
    let ground = Ground::lay();
    let spec = ground.job(options, MICROBATCHES);
    Box::pin(newcomer(&spec, 4, true)).await;
}

/// Another rank's state is on its way into the engine when that rank is lost: all of it comes, and the newcomer goes on from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_that_is_left_alone_while_it_takes_a_state_takes_all_of_it() {
    let ground = Ground::lay();
    let options = "max_iters = 12\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 0\ncheckpointing_steps = 9\n\
                   compare_interval = 3\n";
    let spec = ground.job(options, MICROBATCHES);
    let expected = Expected::of(&spec, 9).await;
    // 1. One worker has the job. Another one joins it, whose engine holds up the second piece of the state.
    let slow = FakeScript { gradient_takes: Duration::from_millis(10), ..FakeScript::default() };
    let writes = HeldCalls { held: Some(2), ..HeldCalls::default() };
    let machine = FakeMachine { writes: writes.clone(), ..FakeMachine::default() };
    let mut ring = ring_of(vec![slow, FakeScript { machine, ..FakeScript::default() }]).await;
    let (id, first) = (JobId::new(), [ring.members[0].clone()]);
    ring.sessions[0].assign(Rank { job: id, epoch: 1, members: &first, rank: 0, spec: &spec }).await;
    ring.sessions[1].join(Rank { job: id, epoch: 1, members: &first, rank: 0, spec: &spec }).await;
    ring.sessions[1].until(RankPhase::Ready).await;
    ring.sessions[0].start_when_ready(id).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 4 {}
    for (rank, session) in (0..2).zip(&ring.sessions) {
        enter(session, view(id, 2, &ring.members), rank, true).await;
    }
    until(|| writes.begun.load(Ordering::Relaxed) >= 2).await;
    // 2. It is alone before it has all.
    ring.workers[0].shutdown.hard.cancel();
    enter(&ring.sessions[1], view(id, 3, &[ring.members[1].clone()]), 0, false).await;
    sleep(Duration::from_millis(50)).await;
    writes.let_go.store(true, Ordering::Relaxed);
    ring.sessions[1].until(RankPhase::Finished).await;
    // 3. The same steps, the same bytes.
    expected.check(&ring.coordinator, id, "a newcomer alone");
}

/// Which of two ranks is right nobody can say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_whose_language_models_differ_after_the_same_step_end_the_job() {
    let ground = Ground::lay();
    let options = "max_iters = 30\nlearning_rate = 0.01\neval_interval = 0\ncompare_interval = 4\n";
    let spec = ground.job(options, 2);
    let (_, _, right) = run_alone(FakeScript::default(), &spec).await;
    // After the update of a step that is compared: the gradients of the next one would spoil the other rank too.
    let machine = FakeMachine { wrong_update: Some(4), ..FakeMachine::default() };
    let wrong = FakeScript { machine, ..FakeScript::default() };
    let mut ring = ring(vec![FakeScript::default(), wrong]).await;
    let id = begin(&mut ring, &spec).await;
    let mut reasons = Vec::new();
    for session in &mut ring.sessions {
        let (report, steps) = until_failed(session, id).await;
        assert_eq!(report.fault(), RankFault::Job, "{}", report.reason);
        assert!(!report.neighbour_lost && steps < 4, "{steps} steps: {}", report.reason);
        reasons.push(report.reason);
    }
    let hash = &right[3].state_sha256;
    for reason in reasons {
        assert!(reason.contains(&format!("after step 4 rank 0 has the state {hash}")), "{reason}");
        let other = reason.split_once("but rank 1 has ").expect(&reason).1.split(':').next().unwrap();
        assert!(other.len() == 64 && other != hash, "{reason}");
    }
}

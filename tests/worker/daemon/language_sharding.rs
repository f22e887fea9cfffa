//! Ranks that have a language model's optimizer together: whoever is lost, comes or ends, the bytes are those of a rank that has all of it.

use std::{sync::atomic::Ordering, time::Duration};

use ringtune_fake_engine::{FakeMachine, FakeScript, HeldCalls, HeldReads, SharesScript};
use ringtune_proto::v1::{RankFault, RankPhase};
use ringtune_shared::{ids::JobId, job::JobSpec};
use tokio::time::sleep;

use crate::{
    gate::Gate,
    language_models::{Ground, until_failed},
    language_rings::{Expected, MICROBATCHES, newcomer, results, ring_of, ring_through_ports},
    re_forming::{enter, until_step_of, view},
    rings::{Ring, begin, ring},
    worker::until,
};

const OPTIONS: &str = "max_iters = 9\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 4\neval_iters = 5\n\
                       checkpointing_steps = 3\ncompare_interval = 2\n";
const SHARED: &str = "shard_optimizer = true\n";

/// A job of so many steps whose ranks share its optimizer, and what it comes to when they do not, with this checkpoint.
async fn shared(steps: u64, checkpoint: u64) -> (Ground, Expected, JobSpec) {
    let ground = Ground::lay();
    let options = OPTIONS.replace("max_iters = 9", &format!("max_iters = {steps}"));
    let expected = Expected::but_for_hashes(&ground.job(&options, MICROBATCHES), checkpoint).await;
    let spec = ground.job(&format!("{options}{SHARED}"), MICROBATCHES);
    (ground, expected, spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_ranks_leaves_the_bytes_of_one_that_has_all() {
    let ground = Ground::lay();
    let expected = Expected::but_for_hashes(&ground.job(OPTIONS, MICROBATCHES), 6).await;
    let spec = ground.job(&format!("{OPTIONS}{SHARED}"), MICROBATCHES);
    for workers in 1..=4 {
        let mut ring = ring(vec![FakeScript::default(); workers]).await;
        let id = begin(&mut ring, &spec).await;
        ring.sessions[0].until(RankPhase::Finished).await;
        expected.check(&ring.coordinator, id, &format!("{workers} ranks"));
    }
    // In the ring's own order, as three ranks that each have all.
    let fast = format!("{OPTIONS}exchange = \"fast\"\n");
    let (mut files, mut sent) = (Vec::new(), Vec::new());
    for options in [fast.clone(), format!("{fast}{SHARED}")] {
        let mut ring = ring(vec![FakeScript::default(); 3]).await;
        let id = begin(&mut ring, &ground.job(&options, 3)).await;
        let (_, steps) = ring.sessions[0].until(RankPhase::Finished).await;
        files.push(results(&ring.coordinator, id, 6));
        sent.push(steps.iter().map(|step| step.traffic.unwrap().sent_bytes).sum::<i64>());
    }
    assert!(files[0] == files[1], "fast sums: other bytes");
    // The parameters that are shared out take the rest of the sums' way; the norm is more, and these buckets are tiny.
    let [all, shared] = [sent[0], sent[1]];
    assert!((all..2 * all).contains(&shared), "{shared} bytes were sent instead of {all}");
}

/// A ring of three that has begun, slowly enough to be broken in any part of a step.
async fn three(spec: &JobSpec) -> (Ring, JobId) {
    let script = FakeScript { gradient_takes: Duration::from_millis(6), ..FakeScript::default() };
    let mut ring = ring_of(vec![script; 3]).await;
    let id = begin(&mut ring, spec).await;
    (ring, id)
}

/// The ranks that are left form the next ring, in this order, and finish the job.
async fn go_on(ring: &mut Ring, id: JobId, left: [usize; 2]) {
    for rank in left {
        ring.sessions[rank].until(RankPhase::Waiting).await;
    }
    let members = left.map(|rank| ring.members[rank].clone());
    for (rank, session) in left.into_iter().enumerate() {
        enter(&ring.sessions[session], view(id, 2, &members), rank as i32, false).await;
    }
    ring.sessions[left[0]].until(RankPhase::Finished).await;
}

/// At any time of a step: in a pass, in the exchange of gradients, of squares or of parameters, in the update, in a checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_of_three_is_lost_no_step_is() {
    let (_ground, expected, spec) = shared(90, 87).await;
    for (round, lost) in [1, 2, 0, 1, 2, 0].into_iter().enumerate() {
        let (mut ring, id) = three(&spec).await;
        while until_step_of(&mut ring.sessions[0], 1).await.step < 2 + round as i64 {}
        sleep(Duration::from_micros(1700 * round as u64)).await;
        ring.workers[lost].shutdown.hard.cancel();
        // The ranks change their places too.
        let left = [[2, 1], [0, 2], [1, 0]][lost];
        go_on(&mut ring, id, left).await;
        expected.check(&ring.coordinator, id, &format!("round {round} without rank {lost}"));
    }
}

/// The norm of a step is with one rank, and its ring breaks before another one has it: the step is taken there in the next ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_another_rank_has_taken_is_taken_in_the_next_ring() {
    const STEP: u64 = 5;
    let (_ground, expected, spec) = shared(12, 12).await;
    // 1. Three ranks, the last of which waits before it says its part of the norm; what rank 0 sends to rank 1 goes through a gate.
    let shares: [SharesScript; 3] = std::array::from_fn(|rank| {
        let squares = HeldCalls { held: (rank == 2).then_some(STEP), ..HeldCalls::default() };
        SharesScript { squares, ..SharesScript::default() }
    });
    let scripts = shares.clone().map(|shares| FakeScript {
        machine: FakeMachine { shares, ..FakeMachine::default() },
        ..FakeScript::default()
    });
    let mut ring = ring_through_ports(scripts.to_vec()).await;
    let straight = ring.members[1].clone();
    let gate = Gate::before(&straight.address).await;
    ring.members[1].address = gate.address.clone();
    let id = begin(&mut ring, &spec).await;
    for shares in &shares {
        until(|| shares.squares.begun.load(Ordering::Relaxed) >= STEP).await;
    }
    // 2. All have their sums. Rank 0 comes to have all of the norm; rank 1 would have it through rank 0.
    gate.closed.store(true, Ordering::Relaxed);
    shares[2].squares.let_go.store(true, Ordering::Relaxed);
    until(|| shares[0].updates.load(Ordering::Relaxed) >= STEP).await;
    assert_eq!(shares[1].updates.load(Ordering::Relaxed), STEP - 1, "rank 1 has taken it too");
    // 3. The ring breaks: the step is with rank 0, and what rank 1 lacks of it is the norm.
    ring.workers[2].shutdown.hard.cancel();
    ring.members[1] = straight;
    go_on(&mut ring, id, [0, 1]).await;
    expected.check(&ring.coordinator, id, "a step of which rank 1 had no norm");
    // It has computed no gradient of it again: both have begun as many squares as there are steps.
    assert_eq!([0, 1].map(|rank| shares[rank].squares.begun.load(Ordering::Relaxed)), [12, 12]);
    assert_eq!([0, 1].map(|rank| shares[rank].updates.load(Ordering::Relaxed)), [12, 12]);
}

/// Rank 0 still writes a checkpoint of the step before when the others have begun the next one: it has not, and loses nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waits_for_a_checkpoint_is_taken_in_the_next_ring() {
    const STEP: u64 = 4;
    let (_ground, expected, spec) = shared(12, 12).await;
    // 1. Of a checkpoint after step 3, each read takes its time.
    let shares: [SharesScript; 3] = std::array::from_fn(|_| SharesScript::default());
    let scripts: Vec<FakeScript> = shares
        .iter()
        .enumerate()
        .map(|(rank, shares)| {
            let take = if rank == 0 { Duration::from_millis(400) } else { Duration::ZERO };
            let held_reads = HeldReads { take, ..HeldReads::default() };
            let machine = FakeMachine { shares: shares.clone(), held_reads, ..FakeMachine::default() };
            FakeScript { machine, ..FakeScript::default() }
        })
        .collect();
    let mut ring = ring_of(scripts).await;
    let id = begin(&mut ring, &spec).await;
    for shares in &shares[1..] {
        until(|| shares.updates.load(Ordering::Relaxed) >= STEP).await;
    }
    assert_eq!(shares[0].updates.load(Ordering::Relaxed), STEP - 1, "rank 0 has taken it too");
    // 2. One of the two is lost that had what falls to rank 0.
    ring.workers[1].shutdown.hard.cancel();
    go_on(&mut ring, id, [0, 2]).await;
    expected.check(&ring.coordinator, id, "a step that rank 0 waited with");
    assert_eq!([0, 2].map(|rank| shares[rank].updates.load(Ordering::Relaxed)), [12, 12]);
}

/// A rank that is given another ring while its engine forgets what falls to others gives nobody what is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_forgets_moments_says_so_in_the_next_ring() {
    let (_ground, expected, spec) = shared(12, 12).await;
    // 1. Rank 2 of four is held up in the second ring that it enters. (In the first one it forgets twice: it had all.)
    let forgets = HeldCalls { held: Some(3), ..HeldCalls::default() };
    let shares = SharesScript { forgets: forgets.clone(), ..SharesScript::default() };
    let machine = FakeMachine { shares, ..FakeMachine::default() };
    let slow = FakeScript { gradient_takes: Duration::from_millis(6), ..FakeScript::default() };
    let mut scripts = vec![slow.clone(); 4];
    scripts[2] = FakeScript { machine, ..slow };
    let mut ring = ring_of(scripts).await;
    let id = begin(&mut ring, &spec).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 3 {}
    // 2. One is lost. The others change their places, so that what rank 2 had is others' now; but it is asked first.
    ring.workers[3].shutdown.hard.cancel();
    let left = [2, 0, 1];
    for rank in left {
        ring.sessions[rank].until(RankPhase::Waiting).await;
    }
    let members = left.map(|rank| ring.members[rank].clone());
    let enter_all = async |epoch: u64| {
        for (rank, session) in left.into_iter().enumerate() {
            enter(&ring.sessions[session], view(id, epoch, &members), rank as i32, false).await;
        }
    };
    enter_all(2).await;
    until(|| forgets.begun.load(Ordering::Relaxed) >= 3).await;
    // 3. The same ranks are to form another ring before it is through.
    enter_all(3).await;
    sleep(Duration::from_millis(50)).await;
    forgets.let_go.store(true, Ordering::Relaxed);
    ring.sessions[2].until(RankPhase::Finished).await;
    expected.check(&ring.coordinator, id, "a ring that was left while a rank forgot");
}

/// Of three ranks any two are neighbours: what both had nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_that_are_lost_together_take_moments_with_them() {
    let ground = Ground::lay();
    let spec = ground
        .job(&format!("{OPTIONS}{SHARED}").replace("max_iters = 9", "max_iters = 100000"), MICROBATCHES);
    let (mut ring, id) = three(&spec).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 4 {}
    for lost in [1, 2] {
        ring.workers[lost].shutdown.hard.cancel();
    }
    ring.sessions[0].until(RankPhase::Waiting).await;
    enter(&ring.sessions[0], view(id, 2, &ring.members[..1]), 0, false).await;
    let (report, _) = until_failed(&mut ring.sessions[0], id).await;
    assert_eq!(report.fault(), RankFault::Node, "{}", report.reason);
    assert!(report.reason.contains("gpt2.shard_optimizer: ranks that are neighbours"), "{}", report.reason);
}

/// It takes the parameters and the counters from another rank, and its part of the moments from whoever has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_its_share() {
    let options = "max_iters = 40\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 0\ncheckpointing_steps = 30\n\
                   compare_interval = 3\n";
    let ground = Ground::lay();
    let spec = ground.job(&format!("{options}{SHARED}"), MICROBATCHES);
    Box::pin(newcomer(&spec, 3, true)).await;
}

/// All ranks know that the job is to end, and bring its state together before they do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_stopped_keeps_all_that_it_goes_on_from() {
    let ground = Ground::lay();
    let options = OPTIONS.replace("max_iters = 9", "max_iters = 60");
    let expected = Expected::but_for_hashes(&ground.job(&options, MICROBATCHES), 60).await;
    let spec = ground.job(&format!("{options}{SHARED}"), MICROBATCHES);
    let mut ring = ring_through_ports(vec![FakeScript::default(); 3]).await;
    // Rank 2 is through a good while before rank 0, which it sends the last of its part to.
    let gate = Gate::late(&ring.members[0].address, Duration::from_millis(20)).await;
    ring.members[0].address = gate.address.clone();
    let id = begin(&mut ring, &spec).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 4 {}
    for session in &ring.sessions {
        session.stop(id, true).await;
    }
    ring.sessions[0].until(RankPhase::Stopped).await;
    let last = *ring.coordinator.steps.numbers(id).last().unwrap();
    let kept = ring.coordinator.kept(id, &format!("checkpoint-{last}.safetensors"));
    let kept =
        kept.unwrap_or_else(|| panic!("no state after step {last}: {:?}", ring.coordinator.kept_names(id)));
    // Ranks that each have all go on from it, and two that have it together.
    for (workers, shared) in [(1, ""), (2, SHARED)] {
        let mut ring = crate::rings::ring(vec![FakeScript::default(); workers]).await;
        let uri = ring.coordinator.add(kept.clone());
        let spec =
            ground.job(&format!("{options}{shared}resume_from_checkpoint = \"{uri}\"\n"), MICROBATCHES);
        let id = begin(&mut ring, &spec).await;
        ring.sessions[0].until(RankPhase::Finished).await;
        assert!(results(&ring.coordinator, id, 60) == expected.files, "{workers} ranks: other bytes");
    }
}

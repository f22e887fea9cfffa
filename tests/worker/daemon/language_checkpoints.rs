//! Checkpoints of a language model, which are written while the next step is computed.

use std::time::Duration;

use ringtune_fake_engine::{FakeMachine, FakeScript, HeldReads};
use ringtune_proto::v1::{RankFault, RankPhase};
use ringtune_shared::ids::JobId;

use crate::{
    language_models::{Ground, run_alone, until_failed},
    worker::{Alone, until},
};

/// Checkpoints after steps 2 and 4.
const FIVE_STEPS: &str = "max_iters = 5\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 0\ncheckpointing_steps = 2\n\
                          compare_interval = 100\n";
/// Reads of the fake model's state when it is written: each of its six tensors for the hash, and again for the file.
const READS: usize = 12;

/// A machine on which the state is read slowly by whoever holds it.
fn slow_reader(take: Duration) -> (FakeScript, HeldReads) {
    let held_reads = HeldReads { take, ..HeldReads::default() };
    let machine = FakeMachine { held_reads: held_reads.clone(), ..FakeMachine::default() };
    (FakeScript { machine, ..FakeScript::default() }, held_reads)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_gradients_are_computed_while_a_checkpoint_is_written_and_the_next_update_waits() {
    let ground = Ground::lay();
    let spec = ground.job(FIVE_STEPS, 1);
    let (quick, id, expected) = run_alone(FakeScript::default(), &spec).await;
    let (script, reads) = slow_reader(Duration::from_millis(40));
    let (slow, other, steps) = run_alone(script, &spec).await;
    // 1. The same bytes.
    for name in ["checkpoint-2.safetensors", "checkpoint-4.safetensors", "model.safetensors"] {
        let kept = |alone: &Alone, id| alone.coordinator.kept(id, name).unwrap();
        assert!(kept(&quick, id) == kept(&slow, other), "{name} differs");
    }
    let hashes = |steps: &[ringtune_proto::v1::StepReport]| -> Vec<String> {
        steps.iter().map(|step| step.state_sha256.clone()).collect()
    };
    assert_eq!(hashes(&steps), hashes(&expected));
    // 2. While the state after step 2 was read, the gradient of step 3 was computed, and that of step 4 was not begun: what
    //    step 3 changes it changes after the last read. The same after step 4.
    let seen = reads.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2 * READS, "{seen:?}");
    for (reads, step) in seen.chunks(READS).zip([2, 4]) {
        assert_eq!(reads.last(), Some(&(step + 1)), "nothing was computed meanwhile: {reads:?}");
        assert!(reads.iter().all(|gradients| (step..=step + 1).contains(gradients)), "{reads:?}");
    }
    slow.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_cannot_be_written_ends_its_job_by_its_name_and_is_not_there() {
    let ground = Ground::lay();
    let machine = FakeMachine {
        // In the middle of the file.
        held_reads: HeldReads { fail_from: Some(READS - 2), ..HeldReads::default() },
        ..FakeMachine::default()
    };
    let mut alone = Alone::start(FakeScript { machine, ..FakeScript::default() }).await;
    let id = JobId::new();
    alone
        .session
        .assign_alone(id, &ground.job(&FIVE_STEPS.replace("max_iters = 5", "max_iters = 100000"), 1))
        .await;
    alone.session.start_when_ready(id).await;
    let (report, _) = until_failed(&mut alone.session, id).await;
    assert_eq!(report.fault(), RankFault::Node, "{}", report.reason);
    assert!(report.reason.contains("checkpoint-2.safetensors"), "{}", report.reason);
    assert!(report.reason.contains(&format!("read {} fails", READS - 2)), "{}", report.reason);
    let kept = alone.coordinator.kept_names(id);
    assert!(!kept.iter().any(|name| name.contains("checkpoint")), "{kept:?}");
    alone.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_stopped_while_a_checkpoint_is_written_keeps_it_whole() {
    let ground = Ground::lay();
    let spec = ground.job(FIVE_STEPS, 1);
    let (quick, expected, _) = run_alone(FakeScript::default(), &spec).await;
    let (script, reads) = slow_reader(Duration::from_millis(40));
    let mut alone = Alone::start(script).await;
    let id = JobId::new();
    alone.session.assign_alone(id, &spec).await;
    alone.session.start_when_ready(id).await;
    until(|| !reads.seen.lock().unwrap().is_empty()).await;
    alone.session.stop(id, true).await;
    alone.session.until(RankPhase::Stopped).await;
    assert!(reads.seen.lock().unwrap().len() >= READS, "it was not written to its end");
    let name = "checkpoint-2.safetensors";
    let kept = |alone: &Alone, id| alone.coordinator.kept(id, name);
    assert!(kept(&alone, id) == kept(&quick, expected), "{name} is not there, or is another one");
    alone.worker.end().await.unwrap();
}

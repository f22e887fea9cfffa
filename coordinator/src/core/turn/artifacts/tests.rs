use ringtune_shared::checkpoint::{file_name, recovery_name};
use ringtune_shared::ids::{ContentHash, Epoch, JobId};

use crate::core::testing::{self, file, hello, inversion, new_job};
use crate::core::{Checkpoint, Cluster, Effects, Input, Options, Recovered, Refusal, SessionId, Time, Write};

/// A job with a ring, its first.
fn job() -> (Cluster, JobId) {
    let mut cluster = testing::cluster();
    cluster.apply(Input::Hello { session: SessionId(1), hello: hello(1) }, Time(1)).unwrap();
    let id = JobId::new();
    cluster.apply(Input::CreateJob(new_job(id, inversion(""))), Time(1)).unwrap();
    cluster.place(Time(1));
    assert!(cluster.job(id).unwrap().ring.is_some());
    (cluster, id)
}

fn checkpoint(step: u64, content: &str) -> Checkpoint {
    Checkpoint { step, epoch: Epoch(1), hash: ContentHash::of(content.as_bytes()), recovery: false }
}

fn apply(cluster: &mut Cluster, input: Input) -> Result<Effects, Refusal> {
    let effects = cluster.apply(input, Time(2));
    cluster.check_indexes().unwrap();
    effects
}

/// The newest one in the job's record, and all that are there.
fn known(cluster: &Cluster, job: JobId) -> (Option<Checkpoint>, Vec<Checkpoint>) {
    (cluster.job(job).unwrap().checkpoint, cluster.checkpoints(job).copied().collect())
}

#[test]
fn the_checkpoints_that_are_there_are_known_and_the_newest_stored() {
    let (mut cluster, id) = job();
    let keep = |cluster: &mut Cluster, step, content: &str| {
        let artifact = file(id, &file_name(step), content.as_bytes(), Some(1));
        apply(cluster, Input::KeepArtifact { artifact }).unwrap()
    };
    let drop = |cluster: &mut Cluster, step| {
        let (name, epoch) = (file_name(step), Some(Epoch(1)));
        apply(cluster, Input::DropArtifact { job: id, name, epoch }).unwrap()
    };
    let stored = |effects: &Effects| {
        effects.writes.iter().find_map(|write| match write {
            Write::UpdateJob(job) => Some(job.checkpoint),
            _ => None,
        })
    };
    assert_eq!(known(&cluster, id), (None, vec![]));
    for step in [500, 1000, 1500] {
        let effects = keep(&mut cluster, step, "a");
        assert_eq!(stored(&effects), Some(Some(checkpoint(step, "a"))));
    }
    // 1. An old one goes, which changes no newest one; the newest one goes.
    assert_eq!(stored(&drop(&mut cluster, 500)), None);
    assert_eq!(known(&cluster, id).1, [checkpoint(1500, "a"), checkpoint(1000, "a")]);
    assert_eq!(stored(&drop(&mut cluster, 1500)), Some(Some(checkpoint(1000, "a"))));
    // 2. One is made again.
    keep(&mut cluster, 1000, "b");
    assert_eq!(known(&cluster, id), (Some(checkpoint(1000, "b")), vec![checkpoint(1000, "b")]));
    // 3. What is not a checkpoint, or not there, changes nothing.
    let artifact = file(id, "learned_embeds.safetensors", b"c", Some(1));
    apply(&mut cluster, Input::KeepArtifact { artifact }).unwrap();
    drop(&mut cluster, 7);
    assert_eq!(known(&cluster, id).1, [checkpoint(1000, "b")]);
    // 4. Nothing is left.
    assert_eq!(stored(&drop(&mut cluster, 1000)), Some(None));
    assert_eq!(known(&cluster, id), (None, vec![]));
}

#[test]
fn only_what_the_jobs_own_ring_made_counts() {
    let (mut cluster, id) = job();
    let mut keep = |name: &str, epoch| {
        let artifact = file(id, name, b"x", epoch);
        let kept = apply(&mut cluster, Input::KeepArtifact { artifact });
        (kept.is_ok(), known(&cluster, id).0.map(|newest| newest.step))
    };
    assert_eq!(keep("checkpoint-5.safetensors", Some(2)), (false, None), "a ring that never was");
    assert_eq!(keep("checkpoint-5.safetensors", None), (true, None), "a user's");
    assert_eq!(keep("checkpoint-05.safetensors", Some(1)), (true, None), "no name of a checkpoint");
    assert_eq!(keep("checkpoint-5.safetensors", Some(1)), (true, Some(5)));
    assert_eq!(keep("checkpoint-5.safetensors", None), (true, None), "a user put another file in its place");
}

#[test]
fn a_recovery_point_takes_the_place_of_the_one_before_it_and_is_nobodys_file() {
    let (mut cluster, id) = job();
    let mut keep = |name: &str, epoch| {
        let artifact = file(id, name, name.as_bytes(), Some(epoch));
        let kept = apply(&mut cluster, Input::KeepArtifact { artifact });
        let effects = kept.ok()?;
        let told = effects.writes.iter().any(|write| matches!(write, Write::AppendEvent(_)));
        let dropped = effects.writes.into_iter().filter_map(|write| match write {
            Write::DropArtifact(_, name) => Some(name),
            _ => None,
        });
        let (newest, all) = known(&cluster, id);
        Some((told, dropped.collect::<Vec<_>>(), newest?.name(), all.len(), cluster.job(id)?.artifacts))
    };
    let text = str::to_owned;
    let (user, first) = (file_name(6), recovery_name(4));
    assert_eq!(keep(&first, 1), Some((false, vec![], first.clone(), 1, 0)));
    assert_eq!(keep(&user, 1), Some((true, vec![], user.clone(), 2, 1)));
    assert_eq!(keep(&recovery_name(9), 2), None, "of another ring");
    // Only the one of earlier steps goes, and it is not the job's newest.
    assert_eq!(keep(&recovery_name(6), 1), Some((false, vec![first], user.clone(), 2, 1)));
    let newest = text(".recovery-9.safetensors");
    assert_eq!(keep(&newest, 1), Some((false, vec![recovery_name(6)], newest.clone(), 2, 1)));
    // With the job's end it goes, too.
    let end = Input::CancelJob { job: id, reason: "enough".to_owned() };
    apply(&mut cluster, end).unwrap();
    let mut ended = None;
    for second in 1..100 {
        let effects = cluster.apply(Input::Tick, Time(second * 1000)).unwrap();
        let dropped = effects.writes.iter().any(|write| *write == Write::DropArtifact(id, newest.clone()));
        ended = ended.or(dropped.then_some(()));
    }
    assert_eq!((ended, cluster.job(id).is_none()), (Some(()), true));
}

#[test]
fn they_are_known_again_after_a_restart() {
    let (mut cluster, id) = job();
    let newest = checkpoint(9, "a");
    let artifact = file(id, &file_name(9), b"a", Some(1));
    apply(&mut cluster, Input::KeepArtifact { artifact }).unwrap();
    let jobs = vec![(**cluster.job(id).unwrap()).clone()];
    let checkpoints = vec![(id, checkpoint(3, "b")), (id, newest), (JobId::new(), checkpoint(7, "c"))];
    let recovered = Recovered { jobs, checkpoints, last_number: 1, ..Recovered::default() };
    let cluster = Cluster::recover(Options::default(), recovered, Time(5));
    cluster.check_indexes().unwrap();
    assert_eq!(known(&cluster, id), (Some(newest), vec![newest, checkpoint(3, "b")]));
}

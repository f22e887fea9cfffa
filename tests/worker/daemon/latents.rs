//! Every picture is encoded once in the whole cluster, and never again as long as somebody has it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use ringtune_fake_engine::{FakeMachine, FakeScript};
use ringtune_proto::v1::{RankFault, RankPhase, session_request::Message as Up};
use ringtune_shared::{files::TEMPORARY_SUFFIX, ids::JobId, job::JobSpec};
use ringtune_worker::settings::Settings;

use crate::{
    coordinator::{Coordinator, Language, Rank},
    rings::{Ring, begin, ring, ring_at},
    worker::{Worker, job_on, pictures},
};

/// Runs a job to its end on the workers of the ring and gives what it learned.
async fn learn(ring: &mut Ring, spec: &JobSpec) -> Vec<u8> {
    let id = begin(ring, spec).await;
    for session in &mut ring.sessions {
        session.until(RankPhase::Finished).await;
        session.let_go(id).await;
    }
    ring.coordinator.kept(id, "learned_embeds.safetensors").unwrap()
}

fn entries(worker: &Worker) -> Vec<PathBuf> {
    let folder = worker.state.path().join("latents");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // One on its way has another name in a moment.
    paths.retain(|path| !path.display().to_string().ends_with(TEMPORARY_SUFFIX));
    paths.sort();
    paths
}

fn damage(entry: &PathBuf) {
    let mut bytes = fs::read(entry).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(entry, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_encodes_every_picture_once() {
    let encoded = Arc::new(AtomicU64::new(0));
    let count = || encoded.load(Ordering::Relaxed);
    let script = FakeScript { encoded: Arc::clone(&encoded), ..FakeScript::default() };
    let mut pair = ring(vec![script.clone(); 2]).await;
    // So many steps show each of them both ways.
    let spec = job_on(&pair.coordinator, pictures(6), 8, 4);
    // 1. Each picture and its mirror image, by one of the two; both keep all.
    let first = learn(&mut pair, &spec).await;
    assert_eq!(count(), 12);
    assert!(pair.workers.iter().all(|worker| entries(worker).len() == 12));
    // 2. A later job finds them.
    assert!(learn(&mut pair, &spec).await == first);
    assert_eq!(count(), 12);
    // 3. A damaged entry comes from the other worker.
    let (one, other) = (entries(&pair.workers[0]), entries(&pair.workers[1]));
    let whole = fs::read(&one[2]).unwrap();
    damage(&one[2]);
    assert!(learn(&mut pair, &spec).await == first);
    assert_eq!((count(), fs::read(&one[2]).unwrap()), (12, whole.clone()));
    // 4. Damaged everywhere, it is made again.
    damage(&one[2]);
    damage(&other[2]);
    assert!(learn(&mut pair, &spec).await == first);
    assert_eq!((count(), fs::read(&other[2]).unwrap()), (13, whole));
    // 5. A worker that comes later gets what the others have.
    pair.workers.push(Worker::start(&pair.coordinator, script.clone()));
    let newcomer = pair.coordinator.accept().await;
    pair.members.insert(0, newcomer.member());
    pair.sessions.insert(0, newcomer);
    assert!(learn(&mut pair, &spec).await == first);
    assert_eq!((count(), entries(&pair.workers[2]).len()), (13, 12));
    // 6. Other pictures of the same job, and another size, are others.
    let more = job_on(&pair.coordinator, pictures(7), 8, 4);
    learn(&mut pair, &more).await;
    assert_eq!(count(), 15);
    let mut larger = spec.clone();
    larger.textual_inversion_mut().unwrap().train.resolution = 32;
    learn(&mut pair, &larger).await;
    assert_eq!(count(), 27);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_are_encoded_when_a_step_shows_them() {
    let script = FakeScript::default();
    let (encoded, dropped) = (Arc::clone(&script.encoded), Arc::clone(&script.dropped));
    let counts = || (encoded.swap(0, Ordering::Relaxed), dropped.swap(0, Ordering::Relaxed));
    let mut one = ring(vec![script.clone()]).await;
    // Steps of four pictures.
    let of = |steps| job_on(&one.coordinator, pictures(32), steps, 2);
    let (short, long, pass) = (of(1), of(4), of(8));
    // 1. Those of the first step, each as it is or mirrored, as it is shown.
    learn(&mut one, &short).await;
    assert_eq!(counts(), (4, 1 + 1), "whatever was before may have left its VAE");
    // 2. The others of four steps.
    let learned = learn(&mut one, &long).await;
    assert_eq!(counts(), (12, 1 + 3));
    // 3. After a pass each was shown once, and the same is learned.
    let of_pass = learn(&mut one, &pass).await;
    assert_eq!(counts().0, 16);
    assert!(learn(&mut one, &long).await == learned);
    assert_eq!(counts().0, 0);
    // 4. Two workers divide them. Those of the fourth step bring the fifth one's along, and so on: the VAE is loaded five
    // times, and not eight.
    let mut pair = ring(vec![script.clone(); 2]).await;
    job_on(&pair.coordinator, pictures(32), 8, 2);
    assert!(learn(&mut pair, &pass).await == of_pass);
    assert_eq!(counts(), (32, 2 * (1 + 5)), "dropped as often, and once before");
    assert!(pair.workers.iter().all(|worker| entries(worker).len() == 32));
    // 5. What is judged on held-out samples needs its pictures.
    let mut judge = ring(vec![script]).await;
    let mut judged = job_on(&judge.coordinator, pictures(32), 1, 2);
    let validation = &mut judged.textual_inversion_mut().unwrap().train.validation;
    (validation.validation_loss_steps, validation.validation_loss_samples) = (1, 32);
    learn(&mut judge, &judged).await;
    let judged = counts().0;
    assert!((32..36).contains(&judged), "{judged}: of four pictures perhaps also as the step showed them");
}

/// Two workers whose ring speaks the protocol of 0.2.0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_of_an_older_protocol_encodes_all_before_it_learns_the_same() {
    let script = FakeScript::default();
    let encoded = Arc::clone(&script.encoded);
    let count = || encoded.swap(0, Ordering::Relaxed);
    let mut today = ring(vec![script.clone()]).await;
    let spec = job_on(&today.coordinator, pictures(7), 1, 2);
    let expected = learn(&mut today, &spec).await;
    assert_eq!(count(), 4);
    let language = Language { version: "0.2.0".to_owned(), protocol: 2, ..Language::default() };
    let mut older = ring_at(Coordinator::speaking(language).await, vec![script; 2]).await;
    job_on(&older.coordinator, pictures(7), 1, 2);
    // A picture of which one worker has only the mirror image is not known to the other.
    for (number, entry) in entries(&today.workers[0]).iter().enumerate() {
        let folder = older.workers[number % 2].state.path().join("latents");
        fs::copy(entry, folder.join(entry.file_name().unwrap())).unwrap();
    }
    assert!(learn(&mut older, &spec).await == expected);
    let made = count();
    assert!((10..14).contains(&made), "{made} of 14: what a worker has is not made again by it");
    assert!(older.workers.iter().all(|worker| entries(worker).len() == 14));
    assert!(learn(&mut older, &spec).await == expected);
    assert_eq!(count(), 0);
}

/// Two workers whose settings are changed.
async fn changed_pair(script: &FakeScript, change: impl Fn(&mut Settings)) -> Ring {
    let mut pair = ring(vec![]).await;
    for _ in 0..2 {
        pair.workers.push(Worker::start_with(&pair.coordinator, script.clone(), &change));
        let session = pair.coordinator.accept().await;
        pair.members.push(session.member());
        pair.sessions.push(session);
    }
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posteriors_that_are_not_in_memory_give_the_same_bytes() {
    let encoded = Arc::new(AtomicU64::new(0));
    let script = FakeScript { encoded: Arc::clone(&encoded), ..FakeScript::default() };
    let mut roomy = ring(vec![script.clone(); 2]).await;
    let mut spec = job_on(&roomy.coordinator, pictures(6), 6, 4);
    spec.textual_inversion_mut().unwrap().train.validation.validation_loss_steps = 2;
    let expected = learn(&mut roomy, &spec).await;
    let entry = fs::metadata(&entries(&roomy.workers[0])[0]).unwrap().len();
    assert_eq!(encoded.swap(0, Ordering::Relaxed), 12);
    // Room in memory and in the cache for so many of the twelve.
    for (in_memory, in_cache) in [(0, 12), (4, 8), (4, 6), (0, 0)] {
        let mut narrow = changed_pair(&script, |settings| {
            settings.storage.latent_memory_bytes = in_memory * entry;
            settings.storage.latent_cache_bytes = in_cache * entry;
        })
        .await;
        job_on(&narrow.coordinator, pictures(6), 6, 4);
        // The second time they come from where the first has left them.
        for again in [false, true] {
            assert!(learn(&mut narrow, &spec).await == expected, "{in_memory}, {in_cache}, {again}");
            for worker in &narrow.workers {
                assert!(entries(worker).len() as u64 <= in_cache);
                // What had no room went with the job.
                assert_eq!(fs::read_dir(worker.state.path().join("work")).unwrap().count(), 0);
            }
        }
        let made = encoded.swap(0, Ordering::Relaxed);
        assert!(if in_cache == 12 { made == 12 } else { (12..=24).contains(&made) }, "{made}");
    }
}

/// A job of one sample a step on one picture of a folder.
fn on_folder(ring: &Ring, folder: &Path, steps: u64) -> JobSpec {
    let mut spec = job_on(&ring.coordinator, pictures(1), steps, 1);
    let inversion = spec.textual_inversion_mut().unwrap();
    inversion.data.images = folder.display().to_string();
    inversion.train.train_batch_size = 1;
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_changes_during_the_job_is_not_taken_for_the_one_that_it_was() {
    let encoded = Arc::new(AtomicU64::new(0));
    let script = FakeScript { encoded: Arc::clone(&encoded), ..FakeScript::default() };
    let mut one = ring(vec![script]).await;
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("a.png");
    let [then, now] = [0, 1].map(|number| pictures(2)[number].1.clone());
    fs::write(&picture, &then).unwrap();
    // 1. One step shows it as it is or mirrored.
    let spec = on_folder(&one, folder.path(), 1);
    learn(&mut one, &spec).await;
    let known = entries(&one.workers[0]);
    assert_eq!((known.len(), encoded.load(Ordering::Relaxed)), (1, 1));
    // 2. Steps that show both. It is another one by the time that the other way is shown.
    let (id, spec) = (JobId::new(), on_folder(&one, folder.path(), 30));
    let session = &mut one.sessions[0];
    session.assign(Rank { job: id, epoch: 1, members: &one.members, rank: 0, spec: &spec }).await;
    session.until(RankPhase::Ready).await;
    fs::write(&picture, &now).unwrap();
    session.start(id).await;
    let (report, _) = session.until(RankPhase::Failed).await;
    assert!(report.reason.contains("a.png has changed since the job began"), "{}", report.reason);
    // Another machine may have the one that the job began with.
    assert_eq!(report.fault(), RankFault::Access);
    session.stop(id, false).await;
    assert_eq!((entries(&one.workers[0]), encoded.load(Ordering::Relaxed)), (known, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_takes_as_long_as_the_encoding_of_what_it_shows() {
    let takes = Duration::from_millis(300);
    let machine = FakeMachine { encoding_takes: takes, ..FakeMachine::default() };
    let mut one = ring(vec![FakeScript { machine, ..FakeScript::default() }]).await;
    let spec = job_on(&one.coordinator, pictures(1), 1, 1);
    let id = begin(&mut one, &spec).await;
    let (_, steps) = one.sessions[0].until(RankPhase::Finished).await;
    assert!(steps[0].step_seconds >= takes.as_secs_f64(), "{}", steps[0].step_seconds);
    one.sessions[0].let_go(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_posterior_that_is_lost_ends_the_job_with_its_name() {
    let slow = FakeScript { gradient_takes: Duration::from_millis(50), ..FakeScript::default() };
    let mut pair = changed_pair(&slow, |settings| settings.storage.latent_memory_bytes = 0).await;
    let spec = job_on(&pair.coordinator, pictures(6), 1000, 4);
    begin(&mut pair, &spec).await;
    pair.sessions[0].until_step().await;
    let lost = entries(&pair.workers[0]);
    lost.iter().for_each(|entry| fs::remove_file(entry).unwrap());
    let reason = loop {
        if let Up::RankReport(report) = pair.sessions[0].next().await.unwrap()
            && report.phase() == RankPhase::Failed
        {
            break report.reason;
        }
    };
    assert!(lost.iter().any(|entry| reason.contains(&entry.display().to_string())), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_cache_the_same_is_learned_and_nothing_is_kept() {
    let encoded = Arc::new(AtomicU64::new(0));
    let script = FakeScript { encoded: Arc::clone(&encoded), ..FakeScript::default() };
    let mut cached = ring(vec![script.clone()]).await;
    let spec = job_on(&cached.coordinator, pictures(6), 4, 4);
    let expected = [learn(&mut cached, &spec).await, learn(&mut cached, &spec).await];
    assert_eq!(encoded.swap(0, Ordering::Relaxed), 12);
    let mut bare = ring(vec![]).await;
    bare.workers.push(Worker::start_with(&bare.coordinator, script, |settings| {
        settings.storage.latent_cache_bytes = 0;
    }));
    bare.sessions.push(bare.coordinator.accept().await);
    bare.members = bare.sessions.iter().map(crate::coordinator::Session::member).collect();
    job_on(&bare.coordinator, pictures(6), 4, 4);
    for expected in expected {
        assert!(learn(&mut bare, &spec).await == expected);
    }
    assert_eq!((encoded.load(Ordering::Relaxed), entries(&bare.workers[0]).len()), (24, 0));
}

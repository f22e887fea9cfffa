//! Workers of a secured cluster: how they get in, stay in, and are put out.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::{self, RankPhase, session_response::Message as Down};
use ringtune_security::{Credentials, Role};
use ringtune_shared::{
    daemon::lifecycle::Shutdown,
    ids::{JobId, WorkerId},
};
use ringtune_worker::{
    daemon::{Error, Start, run_with},
    engine::{EngineError, EngineHandle},
    membership::MembershipError,
    settings::Settings,
};

use crate::{
    cluster::Cluster,
    coordinator::{Coordinator, Session},
    rings::{Ring, begin, results, ring},
    worker::{Worker, job, settings, until},
};

fn stored(worker: &Worker) -> Option<Credentials> {
    Credentials::load(&worker.state.path().join("credentials")).unwrap()
}

/// Starts on another worker's folder.
fn again(
    coordinator: &Coordinator,
    state: &Arc<tempfile::TempDir>,
    token: bool,
    cluster: &Cluster,
) -> Worker {
    let settings = settings(coordinator, state);
    let token = token.then(|| cluster.token());
    Worker::start_in(Arc::clone(state), settings, token, FakeScript::default())
}

fn is_known_as_itself(session: &Session) -> bool {
    session.caller.as_ref().is_some_and(|who| who.role == Role::Worker && who.name == session.hello.worker_id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_needed_once() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    // 1. With the token, and then a job with all its files.
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let mut session = coordinator.accept().await;
    assert!(is_known_as_itself(&session), "{:?}", session.caller);
    let (id, spec) = (JobId::new(), job(&coordinator, 2, 1));
    session.assign_alone(id, &spec).await;
    session.start_when_ready(id).await;
    session.until(RankPhase::Finished).await;
    assert!(coordinator.kept(id, "learned_embeds.safetensors").is_some());
    let state = worker.leave().await;
    // 2. Without one, and with one that nobody needs.
    for token in [false, true] {
        let worker = again(&coordinator, &state, token, &cluster);
        let next = coordinator.accept().await;
        assert!(is_known_as_itself(&next));
        assert_eq!(next.hello.worker_id, session.hello.worker_id);
        worker.end().await.unwrap();
    }
    assert_eq!(Cluster::count(&cluster.joins), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_waits_for_the_coordinator_that_it_is_to_join() {
    let cluster = Cluster::new();
    cluster.is_away.store(true, Ordering::SeqCst);
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!worker.running.is_finished() && stored(&worker).is_none());
    cluster.is_away.store(false, Ordering::SeqCst);
    assert!(is_known_as_itself(&coordinator.accept().await));
    worker.end().await.unwrap();
    // One that waits ends at once when it is asked to.
    cluster.is_away.store(true, Ordering::SeqCst);
    let worker = Worker::start_joining(&coordinator, cluster.token());
    tokio::time::sleep(Duration::from_millis(100)).await;
    worker.end().await.unwrap();
}

/// Why a worker does not start.
async fn refusal(settings: Settings, token: Option<ringtune_security::JoinToken>) -> MembershipError {
    let never = || -> Result<EngineHandle, EngineError> { panic!("it does not come to that") };
    let start = Start { token, ..Start::default() };
    match Box::pin(run_with(settings, start, Shutdown::default(), never)).await {
        Err(Error::Membership(error)) => *error,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_refused_says_why_and_what_to_do() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let coordinator = Coordinator::of(&cluster).await;
    let plain = Coordinator::start().await;
    let state = tempfile::tempdir().unwrap();
    let wanted = settings(&coordinator, &state);
    // No token, and no certificate.
    let nothing = refusal(wanted.clone(), None).await;
    assert!(nothing.is_usage());
    for step in ["ringtune token create --role worker", "--join TOKEN", &coordinator.url(), "credentials"] {
        assert!(nothing.to_string().contains(step), "{step}: {nothing}");
    }
    // A token of another cluster: its CA is another one.
    let theirs = refusal(wanted.clone(), Some(other.token())).await.to_string();
    assert!(theirs.contains("another CA"), "{theirs}");
    // One that was used.
    let used = cluster.token();
    let worker = Worker::start_joining(&coordinator, used.clone());
    until(|| stored(&worker).is_some()).await;
    let again = refusal(wanted.clone(), Some(used)).await;
    assert!(!again.is_usage() && again.to_string().contains("the token was used"), "{again}");
    // Where no TLS is.
    let mut no_tls = settings(&plain, &state);
    let here = refusal(no_tls.clone(), Some(cluster.token())).await;
    assert!(here.is_usage() && here.to_string().contains("https://"), "{here}");
    no_tls.coordinator.url = no_tls.coordinator.url.replace("http:", "https:");
    let there = refusal(no_tls, Some(cluster.token())).await.to_string();
    assert!(there.contains("speaks no TLS"), "{there}");
    // Nothing of it was kept but the key that asks again.
    let kept = std::fs::read_dir(state.path().join("credentials")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(kept, ["joining.pem"]);
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_has_ended_needs_a_token() {
    let cluster = Cluster::whose_certificates_last(Duration::from_secs(1));
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let _session = coordinator.accept().await;
    let state = worker.leave().await;
    let folder = state.path().join("credentials");
    until(|| {
        let credentials = Credentials::load(&folder).unwrap().unwrap();
        credentials.validity().is_over(std::time::SystemTime::now())
    })
    .await;
    let over = refusal(settings(&coordinator, &state), None).await.to_string();
    assert!(over.contains("ended at 20") && over.contains("--join TOKEN"), "{over}");
    let worker = again(&coordinator, &state, true, &cluster);
    assert!(is_known_as_itself(&coordinator.accept().await));
    assert_eq!(Cluster::count(&cluster.joins), 2);
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_renewed_after_two_thirds_of_its_time() {
    let cluster = Cluster::whose_certificates_last(Duration::from_secs(6));
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let mut session = coordinator.accept().await;
    let first = stored(&worker).unwrap();
    let began = std::time::Instant::now();
    until(|| Cluster::count(&cluster.renewals) > 0).await;
    assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
    until(|| stored(&worker).unwrap().serial() != first.serial()).await;
    // Beyond the first one's end, and in the same session.
    until(|| Cluster::count(&cluster.renewals) > 1).await;
    assert!(session.next().await.is_some());
    // What is connected anew shows the new one.
    let mut coordinator = coordinator.restart().await;
    let session = coordinator.accept().await;
    assert!(is_known_as_itself(&session));
    assert_ne!(session.caller.unwrap().serial, first.serial());
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_root_is_believed_at_once_and_kept() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let session = coordinator.accept().await;
    let first = stored(&worker).unwrap();
    session.say(Down::Trust(cluster.rotate())).await;
    // Its own certificate is of the old root: it asks for another one, long before two thirds.
    until(|| Cluster::count(&cluster.renewals) == 1).await;
    until(|| stored(&worker).unwrap().serial() != first.serial()).await;
    assert_eq!(stored(&worker).unwrap().roots().ders().len(), 2);
    // Once is enough.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(Cluster::count(&cluster.renewals), 1);
    let state = worker.leave().await;
    let worker = again(&coordinator, &state, false, &cluster);
    assert!(is_known_as_itself(&coordinator.accept().await));
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_worker_stays_out_until_it_has_a_new_token() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let mut session = coordinator.accept().await;
    let serial = stored(&worker).unwrap().serial().to_owned();
    cluster.trust.revoke(|revoked| revoked.serials.extend([serial]));
    while session.next().await.is_some() {}
    // It goes on trying, and does not get in.
    let nobody = tokio::time::timeout(Duration::from_secs(2), coordinator.accept()).await;
    assert!(nobody.is_err() && !worker.running.is_finished());
    let state = worker.leave().await;
    let worker = again(&coordinator, &state, true, &cluster);
    let back = coordinator.accept().await;
    assert!(is_known_as_itself(&back) && back.hello.worker_id == session.hello.worker_id);
    assert_eq!(Cluster::count(&cluster.joins), 2);
    worker.end().await.unwrap();
}

/// A job of twelve steps on three workers.
async fn learned(mut ring: Ring) -> Vec<u8> {
    let spec = job(&ring.coordinator, 12, 4);
    let id = begin(&mut ring, &spec).await;
    for session in &mut ring.sessions {
        session.until(RankPhase::Finished).await;
    }
    let results = results(&ring.coordinator, id);
    for worker in ring.workers {
        worker.end().await.unwrap();
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_over_tls_learns_the_same_bytes() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    let (mut workers, mut sessions) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        workers.push(Worker::start_joining(&coordinator, cluster.token()));
        sessions.push(coordinator.accept().await);
    }
    let members = sessions.iter().map(Session::member).collect();
    let secured = learned(Ring { coordinator, workers, sessions, members }).await;
    assert!(secured == learned(ring(vec![FakeScript::default(); 3]).await).await);
}

fn write_files(folder: &Path, credentials: &Credentials, settings: &mut Settings) {
    // The store has the key in front of the chain, and whoever reads either finds it.
    credentials.store(folder).unwrap();
    settings.security.certificate = folder.join("identity.pem");
    settings.security.key = folder.join("identity.pem");
    settings.security.ca = folder.join("trust.pem");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_from_elsewhere_says_who_a_worker_is() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    let (state, files) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    let mut wanted = settings(&coordinator, &state);
    let id = WorkerId::new();
    write_files(&files.path().join("ours"), &cluster.certify(Role::Worker, &id.to_string()), &mut wanted);
    let worker = Worker::start_in(Arc::clone(&state), wanted.clone(), None, FakeScript::default());
    let session = coordinator.accept().await;
    assert!(is_known_as_itself(&session) && session.hello.worker_id == id.to_string());
    // The roots are those of the file, whatever the coordinator says.
    session.say(Down::Trust(v1::Trust::default())).await;
    worker.end().await.unwrap();
    assert_eq!(Cluster::count(&cluster.joins), 0);
    // A person's is none for a worker.
    write_files(&files.path().join("ada"), &cluster.certify(Role::Admin, "ada"), &mut wanted);
    let person = refusal(wanted, None).await;
    assert!(person.is_usage() && person.to_string().contains("admin ada"), "{person}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ports_of_a_secured_worker_speak_tls() {
    let cluster = Cluster::new();
    let mut coordinator = Coordinator::of(&cluster).await;
    let worker = Worker::start_joining(&coordinator, cluster.token());
    let session = coordinator.accept().await;
    let address = session.hello.address.clone();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = answer.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("https://"), "{answer}");
    worker.end().await.unwrap();
}

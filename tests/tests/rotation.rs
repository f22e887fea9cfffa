//! Roots, certificates and tokens that change while a job runs: it goes on, with the same bytes, and who is put out is out.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{self, JobState, WorkerState, access_service_client::AccessServiceClient};
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    wait::{SOON, until},
};

/// Of the job; with 20 ms a step at least 20 seconds.
const STEPS: i64 = 1_000;
/// Of one that outlives several certificates.
const MANY_STEPS: i64 = 1_600;
/// Seconds. Less would do, but for disks that take seconds to keep a file.
const SHORT_LIFE: &str = "18";
/// Seconds; whoever has a certificate gets the next one after two thirds of that.
const LIFE: &str = "12";
/// A revoked worker has lost its place after so long.
const OUT: Duration = Duration::from_secs(3);

fn job(steps: i64) -> Result<Job> {
    Ok(Job::toy()?
        .set("train.max_train_steps", steps)
        .set("train.train_batch_size", 1)
        .set("train.checkpointing_steps", 0)
        .shared_by(2))
}

async fn certificates(cluster: &Cluster<'_>) -> Result<Vec<v1::Certificate>> {
    let mut client = AccessServiceClient::new(cluster.coordinator.door().channel()?);
    Ok(client.list_certificates(v1::ListCertificatesRequest::default()).await?.into_inner().certificates)
}

/// The newest certificate of each worker.
async fn newest(cluster: &Cluster<'_>) -> Result<Vec<v1::Certificate>> {
    let all = certificates(cluster).await?;
    let of = |id: &str| {
        let mut his = all.iter().filter(|one| one.member.as_ref().is_some_and(|member| member.name == id));
        his.next().cloned().with_context(|| format!("{id} has no certificate in {all:?}"))
    };
    cluster.workers.iter().map(|worker| of(&worker.id)).collect()
}

/// Waits for other certificates of all workers than these; gives them.
async fn next(cluster: &Cluster<'_>, before: &[v1::Certificate]) -> Result<Vec<v1::Certificate>> {
    let renewed = || async {
        let now = newest(cluster).await?;
        let all = now.iter().zip(before).all(|(now, before)| now.serial != before.serial);
        Ok(all.then_some(now))
    };
    until("all workers have another certificate", SOON, renewed).await
}

async fn ring(cluster: &Cluster<'_>, job_id: &str) -> Result<Vec<String>> {
    let job = cluster.job(job_id).await?;
    ensure!(job.state() == JobState::Running, "{:?}: {}", job.state(), job.state_reason);
    Ok(job.ring.context("a ring")?.members.into_iter().map(|member| member.worker_id).collect())
}

/// Result of one worker, without TLS.
async fn learned_alone(steps: i64) -> Result<Vec<u8>> {
    let sandbox = Sandbox::new()?;
    let plain = Cluster::start_fake(&sandbox, 1).await?;
    let job_id = plain.submit(&sandbox.write_job("job.toml", &job(steps)?)?).await?;
    plain.learned(&job_id, "out").await
}

/// Two workers over TLS.
async fn secured<'a>(sandbox: &'a Sandbox, life: &str) -> Result<Cluster<'a>> {
    let launch = Launch::coordinator().over_tls().variable("RINGTUNE__AUTHORITY__CERTIFICATE_SECONDS", life);
    Cluster::start_fake_with(sandbox, launch, 2, |worker| worker.flags(["--gradient-takes=20"])).await
}

/// A job's log.
async fn log(cluster: &Cluster<'_>, job_id: &str) -> Result<Vec<v1::LogLine>> {
    let mut jobs = cluster.jobs().await?;
    let (mut lines, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListEventsRequest {
            job_id: job_id.to_owned(),
            page_size: 1000,
            page_token,
            ..Default::default()
        };
        let page = jobs.list_events(request).await?.into_inner();
        lines.extend(page.events.into_iter().filter_map(|event| match event.event {
            Some(v1::job_event::Event::Log(line)) => Some(line),
            _ => None,
        }));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(lines);
        }
    }
}

#[tokio::test]
async fn a_job_outlives_several_certificates_and_loses_no_step() -> Result<()> {
    let expected = learned_alone(MANY_STEPS).await?;
    let sandbox = Sandbox::new()?;
    let cluster = secured(&sandbox, SHORT_LIFE).await?;
    let job_id = cluster.submit(&sandbox.write_job("job.toml", &job(MANY_STEPS)?)?).await?;
    ensure!(cluster.learned(&job_id, "out").await? == expected, "it learned something else");

    // The ring was formed anew before its certificates ended, each time between two steps; nobody was lost.
    let lines = log(&cluster, &job_id).await?;
    let texts = |part: &str| lines.iter().filter(|line| line.message.contains(part)).count();
    let anew = texts("its members connect anew");
    ensure!(anew >= 2, "the ring was formed {anew} times: {lines:#?}");
    for trouble in ["lost", "is broken", "has ended", "ring broke"] {
        ensure!(texts(trouble) == 0, "{trouble}: {lines:#?}");
    }
    // There was a session for each certificate, and the one before stood until then.
    for worker in &cluster.workers {
        let log = fs::read_to_string(sandbox.path(&format!("{}.log", worker.label)))?;
        ensure!(log.matches("session opened").count() >= 3, "{log}");
        ensure!(!log.contains("no session"), "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn roots_rotate_certificates_are_renewed_and_a_worker_is_revoked_while_a_job_runs() -> Result<()> {
    let expected = learned_alone(STEPS).await?;
    let sandbox = Sandbox::new()?;
    let cluster = secured(&sandbox, LIFE).await?;
    let first = newest(&cluster).await?;
    let job_id = cluster.submit(&sandbox.write_job("job.toml", &job(STEPS)?)?).await?;
    cluster.wait_for_step(&job_id, 10).await?;
    let members = ring(&cluster, &job_id).await?;

    // 1. Certificates are renewed when it is time, and nobody notices.
    let second = next(&cluster, &first).await?;

    // 2. Another root: everybody has a certificate of it at once, and the older one can go.
    cluster.finish(&["ca", "rotate"]).await?.expect_code(0)?;
    let third = next(&cluster, &second).await?;
    ensure!(third.iter().all(|certificate| certificate.root == 2), "{third:?}");
    let retired = || async { Ok((cluster.finish(&["ca", "retire"]).await?.code == Some(0)).then_some(())) };
    until("nobody needs the older root", SOON, retired).await?;
    let step = cluster.job(&job_id).await?.step;
    cluster.wait_for_step(&job_id, step + 20).await?;
    ensure!(ring(&cluster, &job_id).await? == members, "the ring changed");

    // 3. One of them is put out.
    let out = cluster.workers[1].id.clone();
    let since = Instant::now();
    cluster.finish(&["cert", "revoke", "--worker", &out]).await?.expect_code(0)?;
    let gone = || async { Ok((!ring(&cluster, &job_id).await?.contains(&out)).then_some(())) };
    until("the revoked worker is out of the ring", OUT.saturating_sub(since.elapsed()), gone).await?;
    let step = cluster.job(&job_id).await?.step;
    cluster.wait_for_step(&job_id, step + 20).await?;
    let listed = cluster.list_workers().await?;
    let its_state = listed.iter().find(|worker| worker.worker_id == out).map(v1::Worker::state);
    ensure!(matches!(its_state, None | Some(WorkerState::Lost)), "{its_state:?}");

    ensure!(cluster.learned(&job_id, "out").await? == expected, "it learned something else");
    Ok(())
}

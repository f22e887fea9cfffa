//! One trace a job, from the call that makes it to the steps of its ranks, as a collector gets it from real daemons; and
//! what becomes of jobs whose collector is of no use.

#[path = "../../shared/traces/tests/collector/mod.rs"]
mod collector;

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use collector::{Answers, Collector, Got};
use ringtune_tests::{Cluster, Job, Launch, Sandbox, job::text, process::finish};
use tokio::{net::TcpListener, time::timeout};

const ENDPOINT: &str = "RINGTUNE__TRACES__ENDPOINT";

/// A cluster of two workers that all send spans there.
async fn cluster<'a>(sandbox: &'a Sandbox, endpoint: &str, more: &[(&str, &str)]) -> Result<Cluster<'a>> {
    let with = |launch: Launch| {
        let launch = launch.variable(ENDPOINT, endpoint);
        more.iter().fold(launch, |launch, (name, value)| launch.variable(name, value))
    };
    let worker = |launch: Launch| with(launch.flags(["--gradient-takes", "20"]));
    Cluster::start_fake_with(sandbox, with(Launch::coordinator()), 2, worker).await
}

fn job(steps: i64) -> Result<Job> {
    Ok(Job::toy()?.set("train.max_train_steps", steps).set("train.checkpointing_steps", 10).shared_by(2))
}

/// The spans of that name, each of which hangs below one of `parents`.
fn below<'a>(got: &'a [Got], name: &str, parents: &[&Got]) -> Result<Vec<&'a Got>> {
    let found: Vec<&Got> = got.iter().filter(|one| one.span.name == name).collect();
    ensure!(!found.is_empty(), "no {name}");
    for one in &found {
        let parent = parents.iter().any(|parent| parent.span.span_id == one.span.parent_span_id);
        ensure!(parent, "{name} hangs elsewhere: {one:?}");
    }
    Ok(found)
}

fn of_epoch<'a>(got: &[&'a Got], epoch: &str) -> Vec<&'a Got> {
    got.iter().copied().filter(|one| one.attribute("epoch").as_deref() == Some(epoch)).collect()
}

/// A daemon that ends sends again what was under way, in case it has not arrived: the same span to the last field.
fn once(got: Vec<Got>) -> Vec<Got> {
    let mut all: Vec<Got> = Vec::with_capacity(got.len());
    for one in got {
        let is_known = all.iter().any(|other| (&other.service, &other.span) == (&one.service, &one.span));
        if !is_known {
            all.push(one);
        }
    }
    all
}

#[tokio::test]
async fn one_trace_goes_from_the_call_to_the_steps_whoever_dies_meanwhile() -> Result<()> {
    let collector = Collector::start(Answers::Well).await?;
    let sandbox = Sandbox::new()?;
    let mut cluster = cluster(&sandbox, &collector.endpoint(), &[]).await?;
    let file = text(&sandbox.write_job("job.toml", &job(150)?)?);
    let mut submit = cluster.ringtune(&["submit", &file])?;
    let submitted = finish(submit.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())).await?;
    let id = submitted.expect_code(0)?.stdout.trim().to_owned();
    cluster.wait_for_step(&id, 5).await?;
    cluster.daemon("worker-2")?.end().await?;
    let died_at = cluster.job(&id).await?.step;
    cluster.wait_for_step(&id, died_at + 10).await?;
    // What the first coordinator had to say: it ends without a word.
    let said = |got: &[Got]| got.iter().any(|one| one.span.name == "re-forming");
    collector.wait_for(said).await.context("the ring is not formed anew")?;
    let mut cluster = cluster.replace_coordinator().await?;
    cluster.learned(&id, "output").await?;
    cluster.terminate(&["worker-1", "coordinator"]).await?;

    // 1. One trace, whose first span is the command, and below it the call.
    let got = once(collector.got());
    let traces: BTreeSet<&[u8]> = got.iter().map(|one| one.span.trace_id.as_slice()).collect();
    ensure!(traces.len() == 1, "{} traces", traces.len());
    let calls: Vec<&Got> = got.iter().filter(|one| one.span.name == "CreateJob").collect();
    let [call] = calls.as_slice() else { anyhow::bail!("{calls:?}") };
    let first: Vec<&Got> = got.iter().filter(|one| one.span.parent_span_id.is_empty()).collect();
    let [first] = first.as_slice() else { anyhow::bail!("{first:?}") };
    ensure!(first.service == "ringtune" && first.span.name == "submit", "{first:?}");
    ensure!(call.span.parent_span_id == first.span.span_id, "{call:?}");
    ensure!(call.service == "ringtune-coordinator", "{call:?}");
    // 2. What the coordinators say, before and after the restart.
    below(&got, "queue", &[call])?;
    let rings = below(&got, "ring", &[call])?;
    let (first, second) = (of_epoch(&rings, "1"), of_epoch(&rings, "2"));
    ensure!(first.len() == 1 && second.len() == 1 && rings.len() == 2, "{rings:?}");
    ensure!(second[0].attribute("state").as_deref() == Some("succeeded"), "{second:?}");
    let (ended, formed) = (first[0].span.end_time_unix_nano, second[0].span.start_time_unix_nano);
    ensure!(ended == formed, "one ring ends at {ended}, the next begins at {formed}");
    below(&got, "re-forming", &[call])?;
    // 3. What the ranks say hangs below their ring of that time.
    let steps = below(&got, "step", &rings)?;
    below(&of_epoch(&steps, "1").into_iter().cloned().collect::<Vec<_>>(), "step", &first)?;
    below(&of_epoch(&steps, "2").into_iter().cloned().collect::<Vec<_>>(), "step", &second)?;
    below(&got, "exchange", &steps)?;
    below(&got, "checkpoint", &steps)?;
    below(&got, "enter", &rings)?;
    below(&got, "upload", &second)?;
    let prepared = below(&got, "prepare", &first)?;
    below(&got, "load", &prepared)?;
    let worker = &cluster.daemon("worker-1")?.id;
    ensure!(steps.iter().any(|step| step.attribute("worker").as_ref() == Some(worker)), "{steps:?}");
    // 4. Ids, numbers and words of ours; nothing that a user wrote.
    let known = "job epoch rank ranks worker step state planned exchange_seconds wait_seconds \
                 hidden_exchange_seconds";
    for attribute in got.iter().flat_map(|one| &one.span.attributes) {
        ensure!(known.split(' ').any(|word| word == attribute.key), "{attribute:?}");
    }
    let all = format!("{got:?}");
    ensure!(!all.contains("green-star") && !all.contains(&text(&sandbox.path(""))), "a user's words: {all}");
    Ok(())
}

/// The one span of that name, which the command sent as the first of its trace, with the call below it.
fn begun<'a>(got: &'a [Got], name: &str, call: &str) -> Result<&'a Got> {
    let found: Vec<&Got> = got.iter().filter(|one| one.span.name == name).collect();
    let [first] = found.as_slice() else { anyhow::bail!("{name}: {found:?}") };
    ensure!(first.service == "ringtune" && first.span.parent_span_id.is_empty(), "{first:?}");
    for below in below(got, call, &[first])? {
        ensure!(below.span.trace_id == first.span.trace_id, "{below:?}");
        ensure!(below.attribute("job") == first.attribute("job"), "{below:?} and {first:?}");
    }
    Ok(first)
}

/// Number of steps in its trace.
fn steps_of(got: &[Got], first: &Got) -> usize {
    let steps = got.iter().filter(|one| one.span.name == "step");
    steps.filter(|one| one.span.trace_id == first.span.trace_id).count()
}

#[tokio::test]
async fn a_verification_is_a_trace_from_the_command_on_over_tls_too() -> Result<()> {
    let started = Collector::start_over_tls(Answers::Late, &["127.0.0.2"]).await;
    let (collector, roots) = started.map_err(|error| anyhow::anyhow!("{error}"))?;
    let sandbox = Sandbox::new()?;
    let ca = sandbox.path("collector.pem");
    fs::write(&ca, roots)?;
    let ca = text(&ca);
    let more = [("RINGTUNE__TRACES__CA", ca.as_str())];
    let mut cluster = cluster(&sandbox, &collector.endpoint(), &more).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job(10)?)?).await?;
    cluster.learned(&id, "output").await?;
    let mut verify = cluster.ringtune(&["verify", &id])?;
    verify.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint());
    verify.env("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca);
    finish(&mut verify).await?.expect_code(0)?;
    cluster.terminate(&["worker-1", "worker-2", "coordinator"]).await?;
    let got = once(collector.got());
    let first = begun(&got, "verify", "VerifyJob")?;
    ensure!(steps_of(&got, first) == 10, "{got:?}");
    Ok(())
}

#[tokio::test]
async fn a_run_is_a_trace_and_so_is_what_its_daemons_do() -> Result<()> {
    let collector = Collector::start(Answers::Late).await?;
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &Job::toy()?)?;
    let mut run = sandbox.ringtune(&["run", "job.toml", "-o", "out"])?;
    run.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()).env(ENDPOINT, collector.endpoint());
    finish(&mut run).await?.expect_code(0)?;
    let got = once(collector.got());
    let first = begun(&got, "run", "CreateJob")?;
    ensure!(steps_of(&got, first) == 3, "{got:?}");
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_of_no_use_changes_no_byte() -> Result<()> {
    let mut all = Vec::new();
    let (never, refuses) =
        (Collector::start(Answers::Never).await?, Collector::start(Answers::Refuses).await?);
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        format!("http://{}", listener.local_addr()?)
    };
    for endpoint in ["", &closed, &never.endpoint(), &refuses.endpoint()] {
        let sandbox = Sandbox::new()?;
        let cluster = cluster(&sandbox, endpoint, &[]).await?;
        let id = cluster.submit(&sandbox.write_job("job.toml", &job(20)?)?).await?;
        all.push(cluster.learned(&id, "output").await?);
        drop(cluster);
        for label in ["coordinator", "worker-1", "worker-2"] {
            let log = fs::read_to_string(sandbox.path(&format!("{label}.log")))?;
            let complaints = log.matches("spans are lost").count();
            ensure!(complaints <= 1, "{complaints} complaints in a few seconds: {log}");
            ensure!(!endpoint.is_empty() || !log.contains("spans"), "off, and yet: {log}");
        }
    }
    ensure!(all.windows(2).all(|pair| pair[0] == pair[1]), "another collector, other bytes");
    Ok(())
}

#[tokio::test]
async fn nobody_connects_where_no_job_is_traced() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let sandbox = Sandbox::new()?;
    let mut cluster = cluster(&sandbox, &endpoint, &[("RINGTUNE__TRACES__SAMPLE_RATIO", "0")]).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job(10)?)?).await?;
    cluster.learned(&id, "output").await?;
    cluster.terminate(&["worker-1", "worker-2", "coordinator"]).await?;
    // All have ended: whoever had connected would stand in the queue.
    let nobody = timeout(Duration::from_millis(100), listener.accept()).await;
    ensure!(nobody.is_err(), "somebody connected");
    Ok(())
}
